"""The security of a cluster: keys, certificates, TLS and the audit log."""
