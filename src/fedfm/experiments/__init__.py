"""The paper's tables and figures: recipes, the grid that runs what is missing, its results."""
