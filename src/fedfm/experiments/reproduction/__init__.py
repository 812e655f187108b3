"""The reproduction: its plan, the claims, its document and the README's headline."""
