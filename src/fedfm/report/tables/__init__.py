"""Tables and pictures of results, as the paper has them, for people and for programs."""
