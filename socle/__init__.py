"""The socle command."""
