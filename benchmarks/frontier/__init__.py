"""How good predicted errors are, what they say of training, and what mixing two formats could gain."""

GRAPHS = ("mlp", "alexnet_like", "resblocks", "bert2_mlm_sdpa")
"""Captured steps of the tests."""

LEARNERS = ("dcgan", "vgg16", "alexnet", "bert", "resnet50", "inception3")
"""Small variants of the paper's six networks."""
