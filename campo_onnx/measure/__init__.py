"""Times taken on this machine: single nodes, whole profiles, and the store that keeps them."""
