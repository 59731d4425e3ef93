"""Everything that is printed; no other file prints."""
