"""The paper's lemma and theorem, checked numerically."""
