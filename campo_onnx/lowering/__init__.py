"""Passes from ONNX to ONNX: the form of a graph that one target runs best.

A pass is a function ``(imported graph, place) -> model``, one file each, that returns the very model where
there is nothing to change. :mod:`campo_onnx.lowering.sequence` has the sequences in which they run.
"""
