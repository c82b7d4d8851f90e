msgl_test(ops THREADS 2 SOURCES test_ops.c LIBS msgl_kernel)
msgl_test(move THREADS 2 SOURCES test_move.c LIBS msgl_kernel msgl_kvcache)
msgl_test(route SOURCES test_route.c LIBS msgl_kernel PkgConfig::JANSSON)
msgl_test(delta THREADS 2 SOURCES test_delta.c LIBS msgl_kernel)
