// SPDX-License-Identifier: Apache-2.0
//
// The smallest use of the library: load a model folder, ask it one question, print the answer as it
// comes. Build: cc generate.c $(pkg-config --cflags --libs minisgl)
#include <minisgl/minisgl.h>
#include <stdio.h>
#include <string.h>

static int on_piece(void *ctx, const msgl_piece *piece)
{
    fwrite(piece->text, 1, piece->text_len, stdout);
    fflush(stdout);
    if (piece->finish == MSGL_FAILED) *(int *)ctx = 1;
    return 0; // anything else would abort the request
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL_DIR TEXT\n", argv[0]);
        return 2;
    }
    msgl_err err;
    msgl_llm *llm;
    msgl_options options;
    msgl_options_init(&options);
    options.model_dir = argv[1];
    options.max_running = 1;
    int rc = msgl_open(&options, &llm, &err), failed = 0;
    if (rc == 0) {
        rc = msgl_submit_text(llm, argv[2], strlen(argv[2]), NULL, on_piece, &failed, NULL, &err);
        if (rc == 0) rc = msgl_run(llm, &err);
        msgl_close(llm);
    }
    if (rc != 0) fprintf(stderr, "%s\n", err.text);
    printf("\n");
    return rc != 0 || failed;
}
