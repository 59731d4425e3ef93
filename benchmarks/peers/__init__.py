"""Other converters to FP16."""
