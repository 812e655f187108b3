"""The paper: recipes of its tables and figures, its claims, the reproduction, its theory."""
