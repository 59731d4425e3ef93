"""What people see: the only place that prints, one file a subject."""
