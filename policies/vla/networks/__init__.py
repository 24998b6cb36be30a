"""Networks of vision-language-action policies, with the parameter names of the published checkpoints."""
