"""Parameter-efficient fine-tuning: LoRA, frozen parameters, bf16 linear layers."""
