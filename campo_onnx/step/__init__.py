"""The interface of a training step: names, types and roles of its inputs and outputs."""
