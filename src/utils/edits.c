// SPDX-License-Identifier: Apache-2.0
#include "utils/edits.h"

int msgl__edits(const char *a, int na, const char *b, int nb)
{
    int row[3][MSGL_EDITS_MAX + 1];
    if (na > MSGL_EDITS_MAX || nb > MSGL_EDITS_MAX) return na > nb ? na : nb;
    for (int j = 0; j <= nb; j++) row[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *now = row[i % 3];
        const int *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= nb; j++) {
            int d = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < d) d = last[j] + 1;
            if (now[j - 1] + 1 < d) d = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < d) {
                d = before[j - 2] + 1;
            }
            now[j] = d;
        }
    }
    return row[na % 3][nb];
}
