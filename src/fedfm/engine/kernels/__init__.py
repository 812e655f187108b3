"""Triton kernels for networks stacked over clients."""
