"""Vision-language-action policies: networks with the parameter names of the published ones, and policies around them."""
