"""Everything that an offline GPU host needs, packed here and used there."""
