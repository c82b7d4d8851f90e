msgl_test(ops THREADS 2 SOURCES test_ops.c LIBS msgl_kernel)
