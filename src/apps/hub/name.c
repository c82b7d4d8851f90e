// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/name.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/attributes.h"
#include "utils/strbuf.h"

static bool is_hex(const char *text, size_t n)
{
    return strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

bool msgl__hub_is_commit(const char *revision)
{
    return is_hex(revision, 40);
}

bool msgl__hub_is_checksum(const char *etag)
{
    return is_hex(etag, 40) || is_hex(etag, 64);
}

bool msgl__hub_path_ok(const char *path)
{
    const size_t n = strlen(path);
    if (n == 0 || n > MSGL_HUB_MAX_PATH) return false;
    for (const char *p = path; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f || *p == '\\') return false;
    }
    for (const char *part = path;; part++) {
        const size_t len = strcspn(part, "/");
        if (len == 0 || (len == 1 && part[0] == '.') || (len == 2 && memcmp(part, "..", 2) == 0)) {
            return false;
        }
        part += len;
        if (*part == '\0') return true;
    }
}

bool msgl__hub_wanted(const char *path)
{
    static const char *const PATTERNS[] = {
        "config*.json",      "generation_config.json",
        "*.safetensors",     "*.safetensors.index.json",
        "tokenizer*",        "special_tokens_map.json",
        "added_tokens.json", "vocab.json",
        "merges.txt",        "*.jinja",
        "chat_template*",    "*.tiktoken",
        "modules.json",      "tiktoken.model",
    };
    static const char *const NEVER[] = {"*.bin", "*.pth", "*.pt", "*.onnx", "*.py", "*.md"};
    static const char *const MODULES[] = {"?_Pooling/config.json", "?_Dense/config.json",
                                          "?_Dense/model.safetensors", "?_LogitScore/config.json"};
    for (size_t i = 0; i < MSGL_COUNT(MODULES); i++) {
        if (fnmatch(MODULES[i], path, FNM_PATHNAME) == 0) return true;
    }
    if (strchr(path, '/') != NULL) return false; // other forms of the same weights are in folders
    for (size_t i = 0; i < MSGL_COUNT(NEVER); i++) {
        if (fnmatch(NEVER[i], path, 0) == 0) return false;
    }
    for (size_t i = 0; i < MSGL_COUNT(PATTERNS); i++) {
        if (fnmatch(PATTERNS[i], path, 0) == 0) return true;
    }
    return false;
}

bool msgl__hub_is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Whether a word may be in a name: hubs allow up to 96 letters, digits, "-", "_" and ".", but no
// ".." and no
// "--", which is the slash in the names of the cache's folders.
static bool word_ok(const char *p, size_t n)
{
    if (n == 0 || n > 96 || *p == '.' || *p == '-') return false;
    for (size_t i = 0; i < n; i++) {
        const char c = p[i];
        if (!msgl__hub_is_letter(c) && strchr("_.-", c) == NULL) return false;
        if (i > 0 && (c == '.' || c == '-') && p[i - 1] == c) return false;
    }
    return true;
}

static bool revision_ok(const char *text)
{
    return strlen(text) <= MSGL_HUB_MAX_REVISION && msgl__hub_path_ok(text) &&
           strpbrk(text, " ?#%:*[~^\"'") == NULL;
}

// Reads what is between ORG/NAME and "@": "/FILE.gguf" or ":TYPE".
static int parse_part(const char *text, const char *part, size_t n, msgl_hub_name *out,
                      msgl_err *err)
{
    if (*part == ':') {
        const bool fits = n - 1 <= MSGL_HUB_MAX_TYPE && word_ok(part + 1, n - 1);
        if (fits) (void)snprintf(out->type, sizeof out->type, "%.*s", (int)(n - 1), part + 1);
        if (fits) return 0;
        return msgl__err_set(err, MSGL_EINVAL,
                             "\"%.100s\": behind \":\" only the type of a .gguf file is allowed, "
                             "as in ORG/NAME:Q8_0",
                             text);
    }
    if (n - 1 <= MSGL_HUB_MAX_PATH) {
        (void)snprintf(out->file, sizeof out->file, "%.*s", (int)(n - 1), part + 1);
    }
    if (msgl__hub_path_ok(out->file) && msgl__ends_with(out->file, ".gguf")) return 0;
    return msgl__err_set(err, MSGL_EINVAL,
                         "\"%.100s\": behind ORG/NAME only a .gguf file of it is allowed, "
                         "as in ORG/NAME/FILE.gguf",
                         text);
}

// Where ORG/NAME begins in an address of a hub; NULL: it is none.
static const char *behind_host(const char *text, const char **source)
{
    static const struct {
        const char *host, *source;
    } HOSTS[] = {{"huggingface.co/", "huggingface"},
                 {"hf.co/", "huggingface"},
                 {"modelscope.cn/models/", "modelscope"}};
    static const char *const SCHEMES[] = {"https://", "http://"};
    if (strncasecmp(text, "hf://", 5) == 0) {
        *source = "huggingface";
        return text + 5;
    }
    for (size_t i = 0; i < MSGL_COUNT(SCHEMES); i++) {
        const size_t n = strlen(SCHEMES[i]);
        if (strncasecmp(text, SCHEMES[i], n) == 0) text += n;
    }
    if (strncasecmp(text, "www.", 4) == 0) text += 4;
    for (size_t i = 0; i < MSGL_COUNT(HOSTS); i++) {
        const size_t n = strlen(HOSTS[i].host);
        if (strncasecmp(text, HOSTS[i].host, n) != 0) continue;
        *source = HOSTS[i].source;
        return text + n;
    }
    return NULL;
}

bool msgl__hub_name_of_address(const char *text, char *out, size_t size, const char **source)
{
    const char *name = behind_host(text, source);
    const size_t n = name != NULL ? strcspn(name, "?#") : 0; // of a page: what it shows
    const char *slash = name != NULL ? memchr(name, '/', n) : NULL;
    if (slash == NULL) return false;
    const char *end = name + n;
    const char *rest = memchr(slash + 1, '/', (size_t)(end - slash - 1)); // behind ORG/NAME
    if (rest == NULL) rest = end;
    while (end > rest && end[-1] == '/') end--;
    const size_t repo = (size_t)(rest - name), len = (size_t)(end - rest);
    // "/tree/REVISION", "/blob/REVISION/FILE" and "/resolve/REVISION/FILE" of pages and downloads.
    static const char *const VIEWS[] = {"/tree/", "/blob/", "/resolve/"};
    int at = snprintf(out, size, "%.*s%.*s", (int)repo, name, (int)len, rest);
    if (len == 0 || strncmp(rest, "/files", len) == 0 || strncmp(rest, "/summary", len) == 0) {
        at = snprintf(out, size, "%.*s", (int)repo, name); // of ModelScope's pages
    }
    for (size_t i = 0; i < MSGL_COUNT(VIEWS); i++) {
        const size_t skip = strlen(VIEWS[i]);
        if (len <= skip || strncmp(rest, VIEWS[i], skip) != 0) continue;
        const char *revision = rest + skip;
        const char *file = memchr(revision, '/', (size_t)(end - revision));
        if (file == NULL) file = end;
        at = snprintf(out, size, "%.*s%.*s@%.*s", (int)repo, name, (int)(end - file), file,
                      (int)(file - revision), revision);
    }
    return at > 0 && (size_t)at < size;
}

int msgl__hub_name_parse(const char *text, const char *revision, msgl_hub_name *out, msgl_err *err)
{
    *out = (msgl_hub_name){0};
    const size_t n = strcspn(text, "@"), org = strcspn(text, "/");
    const char *name = text + org + (org < n);
    const size_t len = org < n ? strcspn(name, "/@:") : 0;
    if (!word_ok(text, org) || !word_ok(name, len)) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "\"%.100s\" is no name of a model; allowed: ORG/NAME of letters, "
                             "digits, \"-\", \"_\" and \".\", up to 96 each",
                             text);
    }
    (void)snprintf(out->repo, sizeof out->repo, "%.*s/%.*s", (int)org, text, (int)len, name);
    const char *part = name + len;
    if (part < text + n) {
        const int rc = parse_part(text, part, (size_t)(text + n - part), out, err);
        if (rc != 0) return rc;
    }
    const char *inner = text[n] == '@' ? text + n + 1 : NULL;
    if (inner != NULL && revision != NULL && strcmp(inner, revision) != 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "two revisions: \"%.60s\" behind the name, --revision \"%.60s\"",
                             inner, revision);
    }
    if (inner == NULL) inner = revision;
    if (inner == NULL) return 0;
    if (!revision_ok(inner)) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "revision \"%.100s\"; allowed: a branch, a tag or a commit of up to "
                             "%d characters",
                             inner, MSGL_HUB_MAX_REVISION);
    }
    (void)snprintf(out->revision, sizeof out->revision, "%s", inner);
    return 0;
}
