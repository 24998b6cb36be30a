"""Vision-language-action policies: networks with the names of the published ones, and policies around them."""
