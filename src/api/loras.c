// SPDX-License-Identifier: Apache-2.0
#include "api/loras.h"

#include <pthread.h>
#include <string.h>

#include "core/err.h"
#include "core/mem.h"

typedef struct lora {
    char *name, *path;
    uint64_t id;
} lora;

struct msgl_loras {
    pthread_mutex_t lock;
    lora all[MSGL_MAX_LORAS];
    int num;
};

msgl_loras *msgl__loras_create(void)
{
    msgl_loras *l = msgl__calloc(1, sizeof *l);
    if (l != NULL) (void)pthread_mutex_init(&l->lock, NULL);
    return l;
}

void msgl__loras_free(msgl_loras *l)
{
    if (l == NULL) return;
    for (int i = 0; i < l->num; i++) {
        msgl__free(l->all[i].name);
        msgl__free(l->all[i].path);
    }
    (void)pthread_mutex_destroy(&l->lock);
    msgl__free(l);
}

static int place_of(const msgl_loras *l, const char *name, size_t len)
{
    int i = 0;
    while (i < l->num &&
           (strlen(l->all[i].name) != len || memcmp(l->all[i].name, name, len) != 0)) {
        i++;
    }
    return i;
}

int msgl__loras_put(msgl_loras *l, const char *name, const char *path, uint64_t id)
{
    const lora one = {.name = msgl__strdup(name), .path = msgl__strdup(path), .id = id};
    lora old = {0};
    int rc = one.name == NULL || one.path == NULL ? MSGL_ENOMEM : 0;
    (void)pthread_mutex_lock(&l->lock);
    const int at = place_of(l, name, strlen(name));
    if (rc == 0 && at == MSGL_MAX_LORAS) rc = MSGL_ELIMIT;
    if (rc == 0) {
        if (at < l->num) old = l->all[at];
        l->all[at] = one;
        if (at == l->num) l->num++;
    }
    (void)pthread_mutex_unlock(&l->lock);
    const lora *unused = rc == 0 ? &old : &one;
    msgl__free(unused->name);
    msgl__free(unused->path);
    return rc;
}

bool msgl__loras_remove(msgl_loras *l, const char *name, uint64_t *id)
{
    lora old = {0};
    (void)pthread_mutex_lock(&l->lock);
    const int at = place_of(l, name, strlen(name));
    const bool found = at < l->num;
    if (found) {
        old = l->all[at];
        memmove(&l->all[at], &l->all[at + 1], (size_t)(l->num - at - 1) * sizeof l->all[0]);
        l->num--;
        *id = old.id;
    }
    (void)pthread_mutex_unlock(&l->lock);
    msgl__free(old.name);
    msgl__free(old.path);
    return found;
}

int msgl__loras_find(msgl_loras *l, const char *name, size_t len, uint64_t *id, char **path)
{
    int rc = 0;
    (void)pthread_mutex_lock(&l->lock);
    const int at = place_of(l, name, len);
    if (at < l->num) {
        rc = 1;
        *id = l->all[at].id;
        if (path != NULL) *path = msgl__strdup(l->all[at].path);
        if (path != NULL && *path == NULL) rc = MSGL_ENOMEM;
    }
    (void)pthread_mutex_unlock(&l->lock);
    return rc;
}

bool msgl__loras_at(const msgl_loras *l, int i, const char **name, const char **path)
{
    if (i >= l->num) return false;
    *name = l->all[i].name;
    *path = l->all[i].path;
    return true;
}
