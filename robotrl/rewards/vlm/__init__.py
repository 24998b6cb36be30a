"""Vision-language models as rewards: encoders, their small training, and what the sources share."""
