"""For tests of ORTModule: gradients, and the graph that runs."""

LOSS_SCALE = 1024.0


def gradients(module, batch):
    module.zero_grad()
    (LOSS_SCALE * module(*batch).square().mean()).backward()
    return {name: parameter.grad / LOSS_SCALE for name, parameter in module.named_parameters()}


def error(actual, expected):
    """Largest relative L2 error of a gradient."""
    assert actual.keys() == expected.keys()
    return max(float((actual[n] - expected[n]).norm() / expected[n].norm()) for n in expected)


def manager_of(module):
    return module._torch_module._execution_manager(True)


def running(module):
    """The gradient graph as handed to the session."""
    return manager_of(module)._onnx_models.optimized_model


def casts(model):
    return [node for node in model.graph.node if node.op_type == "Cast"]
