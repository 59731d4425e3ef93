"""OpenVINO: its plugin for CPUs runs steps, that for GPUs predicts them. The only importer of openvino."""
