// SPDX-License-Identifier: Apache-2.0
//
// How a rank's watch sees ranks whose memory it does not share: a connection to each, over which
// beats come, one byte a tick. What they say goes into this rank's own memory of the group, where
// the watch judges it like beats of its host (group.h).
#ifndef MSGL_DISTRIBUTED_LINK_H
#define MSGL_DISTRIBUTED_LINK_H

#include "distributed/internal.h"

typedef struct msgl_links { // {0}: none
    // 1 + descriptors: of beats, and of the way that is closed when somebody is to blame.
    int beats[MSGL_GROUP_MAX_SIZE], ways[MSGL_GROUP_MAX_SIZE];
    bool reported; // who is to blame has been sent to the others
} msgl_links;

// Of `rank` from now on, and sends it a beat at once.
void msgl__links_add(msgl_links *l, int rank, int beats, int way);
// One tick: sends a beat to all, reads what came; tells who is to blame, once.
void msgl__links_look(msgl_links *l, msgl_group *g);
// The last tick of a rank that leaves.
void msgl__links_leave(msgl_links *l, msgl_group *g);

#endif
