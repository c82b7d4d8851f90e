// SPDX-License-Identifier: Apache-2.0
//
// \p{...}: characters by their general category (Unicode Standard, section 4.5), as utf8proc has
// it. The ranges of each are found once in a process: 1.1 million characters are asked for.
#include <pthread.h>
#include <string.h>
#include <utf8proc.h>

#include "core/attributes.h"
#include "grammar/regex.h"

enum { MAX_RUNS = 5000, CATEGORIES = 30 };

typedef struct run {
    uint32_t first, last;
    int category;
} run;

static run runs[MAX_RUNS];
static int num_runs;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_runs(void)
{
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        const int category = (int)utf8proc_category((utf8proc_int32_t)c);
        if (num_runs > 0 && (runs[num_runs - 1].category == category || num_runs == MAX_RUNS)) {
            runs[num_runs - 1].last = c;
        } else {
            runs[num_runs++] = (run){c, c, category};
        }
    }
}

// By utf8proc_category_t.
static const struct {
    const char *name, *lengthy;
} NAMES[CATEGORIES] = {
    {"Cn", "Unassigned"},
    {"Lu", "Uppercase_Letter"},
    {"Ll", "Lowercase_Letter"},
    {"Lt", "Titlecase_Letter"},
    {"Lm", "Modifier_Letter"},
    {"Lo", "Other_Letter"},
    {"Mn", "Nonspacing_Mark"},
    {"Mc", "Spacing_Mark"},
    {"Me", "Enclosing_Mark"},
    {"Nd", "Decimal_Number"},
    {"Nl", "Letter_Number"},
    {"No", "Other_Number"},
    {"Pc", "Connector_Punctuation"},
    {"Pd", "Dash_Punctuation"},
    {"Ps", "Open_Punctuation"},
    {"Pe", "Close_Punctuation"},
    {"Pi", "Initial_Punctuation"},
    {"Pf", "Final_Punctuation"},
    {"Po", "Other_Punctuation"},
    {"Sm", "Math_Symbol"},
    {"Sc", "Currency_Symbol"},
    {"Sk", "Modifier_Symbol"},
    {"So", "Other_Symbol"},
    {"Zs", "Space_Separator"},
    {"Zl", "Line_Separator"},
    {"Zp", "Paragraph_Separator"},
    {"Cc", "Control"},
    {"Cf", "Format"},
    {"Cs", "Surrogate"},
    {"Co", "Private_Use"},
};
static const struct {
    char letter;
    const char *lengthy;
} GROUPS[] = {{'L', "Letter"}, {'M', "Mark"},      {'N', "Number"}, {'P', "Punctuation"},
              {'S', "Symbol"}, {'Z', "Separator"}, {'C', "Other"}};

static bool is(const char *name, size_t n, const char *what)
{
    return strlen(what) == n && memcmp(name, what, n) == 0;
}

// The categories that a name stands for, as bits; 0: it is not known.
static uint32_t categories_of(const char *name, size_t n)
{
    static const char *const PREFIXES[] = {"General_Category=", "gc="};
    for (size_t i = 0; i < MSGL_COUNT(PREFIXES); i++) {
        const size_t k = strlen(PREFIXES[i]);
        if (n <= k || memcmp(name, PREFIXES[i], k) != 0) continue;
        name += k;
        n -= k;
        break;
    }
    char group = n == 1 ? name[0] : '\0';
    for (size_t i = 0; i < MSGL_COUNT(GROUPS); i++) {
        if (is(name, n, GROUPS[i].lengthy)) group = GROUPS[i].letter;
    }
    if (is(name, n, "Any")) return UINT32_MAX;
    uint32_t set = 0;
    for (int i = 0; i < CATEGORIES; i++) {
        const bool cased = is(name, n, "LC") && (i == 1 || i == 2 || i == 3);
        if (cased || NAMES[i].name[0] == group || is(name, n, NAMES[i].name) ||
            is(name, n, NAMES[i].lengthy)) {
            set |= 1u << i;
        }
    }
    return set;
}

bool msgl__regex_category(const char *name, size_t n, bool negate,
                          void (*add)(void *to, uint32_t first, uint32_t last), void *to)
{
    uint32_t set = categories_of(name, n);
    if (set == 0) return false;
    if (negate) set = ~set;
    pthread_once(&once, find_runs);
    for (int i = 0; i < num_runs;) {
        if ((set >> runs[i].category & 1) == 0) {
            i++;
            continue;
        }
        const uint32_t first = runs[i].first;
        while (i < num_runs && (set >> runs[i].category & 1) != 0) i++;
        add(to, first, runs[i - 1].last);
    }
    return true;
}
