"""Several hosts on a real NFS server, in an emulated machine; only where TRAINQ_TEST_NFS asks for it."""
