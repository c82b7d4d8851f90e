msgl_test(ops SOURCES test_ops.c LIBS msgl_kernel)
