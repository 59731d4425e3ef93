"""OpenVINO's CPU plugin as a runtime: the only importer of openvino."""
