"""The plan as a value: made, saved, explained and executed."""
