"""What runs left behind: the store, merging, exports, and what of a run is read again."""
