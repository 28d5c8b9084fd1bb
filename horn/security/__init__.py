"""Keys, certificates and the record of who did what: what the cluster trusts, and why."""
