// SPDX-License-Identifier: Apache-2.0
#include "launch/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/landlock.h>
#include <pwd.h>
#include <sched.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// --- users ---

enum { SPEC_MAX = 128 };

// Finds the user and the group that "NAME[:GROUP]" means; without GROUP it is the user's own.
static int look_up(const char *spec, char name[SPEC_MAX], const struct passwd **user, gid_t *group,
                   msgl_err *err)
{
    (void)snprintf(name, SPEC_MAX, "%s", spec);
    char *colon = strchr(name, ':');
    if (colon != NULL) *colon = '\0';
    *user = getpwnam(name);
    if (*user == NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "--user %.64s: there is no user %.64s", spec, name);
    }
    *group = (*user)->pw_gid;
    if (colon == NULL) return 0;
    const struct group *g = getgrnam(colon + 1);
    if (g == NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "--user %.64s: there is no group %.64s", spec,
                             colon + 1);
    }
    *group = g->gr_gid;
    return 0;
}

int msgl__become_user(const char *spec, msgl_err *err)
{
    char name[SPEC_MAX];
    const struct passwd *user;
    gid_t group = 0;
    if (strlen(spec) >= SPEC_MAX) {
        return msgl__err_set(err, MSGL_EINVAL, "--user: allowed is NAME[:GROUP] of %d characters",
                             SPEC_MAX - 1);
    }
    if (geteuid() != 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--user %.64s: only a server that root starts can become another "
                             "user",
                             spec);
    }
    const int rc = look_up(spec, name, &user, &group, err);
    if (rc != 0) return rc;
    if (initgroups(name, group) != 0 || setresgid(group, group, group) != 0 ||
        setresuid(user->pw_uid, user->pw_uid, user->pw_uid) != 0) {
        return msgl__err_set(err, MSGL_EIO, "--user %.64s: %s", spec, strerror(errno));
    }
    // Caches go where this user may write.
    return setenv("HOME", user->pw_dir, 1) == 0
               ? 0
               : msgl__err_set(err, MSGL_ENOMEM, "--user: out of memory");
}

int msgl__no_new_privileges(msgl_err *err)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0) return 0;
    return msgl__err_set(err, MSGL_EIO, "cannot give up new privileges: %s", strerror(errno));
}

// --- files and other processes ---

// The kernel's struct landlock_ruleset_attr, declared here because the fields behind the first are
// of later versions than the headers of the oldest system that this is built on.
typedef struct landlock_rules {
    uint64_t files, net, scopes;
} landlock_rules;

static int landlock_version(void)
{
    return (int)syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
}

// Allows the accesses `files` below a folder, which is made if it is not there.
static int allow_folder(int rules, const char *dir, uint64_t files, msgl_err *err)
{
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        return msgl__err_set(err, MSGL_EIO, "--batch-dir %.180s: %m", dir);
    }
    const int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return msgl__err_set(err, MSGL_EIO, "--batch-dir %.180s: %m", dir);
    const struct landlock_path_beneath_attr rule = {.allowed_access = files, .parent_fd = fd};
    const long rc = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    const int code = rc == 0 ? 0 : msgl__err_set(err, MSGL_EIO, "--batch-dir %.180s: %m", dir);
    close(fd);
    return code;
}

int msgl__shut_in(const char *writes, msgl_err *err)
{
    enum { TRUNCATE = 1 << 14, SCOPES = 3 }; // of versions 3 and 6: abstract sockets, signals
    const int version = landlock_version();
    if (version < 1) return 0; // an older kernel, or one that is told not to have it
    const uint64_t truncate = version >= 3 ? TRUNCATE : 0;
    const uint64_t store = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                           LANDLOCK_ACCESS_FS_MAKE_REG | truncate;
    const landlock_rules all = {.files =
                                    store | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                                    LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR |
                                    LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
                                    LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM,
                                .scopes = version >= 6 ? SCOPES : 0};
    const size_t size = version >= 6 ? sizeof all : sizeof all.files;
    const int rules = (int)syscall(SYS_landlock_create_ruleset, &all, size, 0);
    int rc = rules < 0 ? msgl__err_set(err, MSGL_EIO, "Landlock: %m") : 0;
    if (rc == 0) rc = msgl__no_new_privileges(err);
    if (rc == 0 && writes != NULL) rc = allow_folder(rules, writes, store, err);
    if (rc == 0 && syscall(SYS_landlock_restrict_self, rules, 0) != 0) {
        rc = msgl__err_set(err, MSGL_EIO, "Landlock: %m");
    }
    if (rules >= 0) close(rules);
    return rc;
}

// --- system calls ---

const char *msgl__confine_unable(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return "this program is built with a sanitizer, whose runtime needs other calls";
#else
    return NULL;
#endif
}

enum {
    FRONT = MSGL_CONFINE_FRONT,
    ENGINE = MSGL_CONFINE_ENGINE,
    LAUNCHER = MSGL_CONFINE_LAUNCHER,
    BATCHES = MSGL_CONFINE_BATCHES,
    RANKS = MSGL_CONFINE_RANKS,
    HOSTS = MSGL_CONFINE_HOSTS,
    TRACES = MSGL_CONFINE_TRACES,
    ALL = FRONT | ENGINE | LAUNCHER | TRACES,
    STARTS = LAUNCHER | RANKS, // processes
};

// Calls that are allowed whatever their arguments. libseccomp leaves out those that the
// architecture does not have. Beside what this program calls the list has what other versions of
// the C library, and other architectures', call in its place.
static const struct {
    int call;
    unsigned permissions;
} CALLS[] = {
    // Files and descriptors.
    {SCMP_SYS(read), ALL},
    {SCMP_SYS(readv), ALL},
    {SCMP_SYS(pread64), ALL},
    {SCMP_SYS(preadv), ALL},
    {SCMP_SYS(write), ALL},
    {SCMP_SYS(writev), ALL},
    {SCMP_SYS(close), ALL},
    {SCMP_SYS(close_range), ALL},
    {SCMP_SYS(lseek), ALL},
    {SCMP_SYS(stat), ALL},
    {SCMP_SYS(lstat), ALL},
    {SCMP_SYS(fstat), ALL},
    {SCMP_SYS(newfstatat), ALL},
    {SCMP_SYS(statx), ALL},
    {SCMP_SYS(statfs), ALL},
    {SCMP_SYS(fstatfs), ALL},
    {SCMP_SYS(access), ALL},
    {SCMP_SYS(faccessat), ALL},
    {SCMP_SYS(faccessat2), ALL},
    {SCMP_SYS(readlink), ALL},
    {SCMP_SYS(readlinkat), ALL},
    {SCMP_SYS(getcwd), ALL},
    {SCMP_SYS(getdents64), ALL},
    {SCMP_SYS(fadvise64), ALL},
    {SCMP_SYS(readahead), ALL},
    {SCMP_SYS(fcntl), ALL},
    {SCMP_SYS(dup), ALL},
    {SCMP_SYS(dup2), ALL},
    {SCMP_SYS(dup3), ALL},
    {SCMP_SYS(pipe2), ALL},
    {SCMP_SYS(poll), ALL},
    {SCMP_SYS(ppoll), ALL},
    {SCMP_SYS(select), ALL},
    {SCMP_SYS(pselect6), ALL},
    {SCMP_SYS(epoll_create1), ALL},
    {SCMP_SYS(epoll_ctl), ALL},
    {SCMP_SYS(epoll_wait), ALL},
    {SCMP_SYS(epoll_pwait), ALL},
    {SCMP_SYS(epoll_pwait2), ALL},
    {SCMP_SYS(eventfd2), ALL},
    {SCMP_SYS(timerfd_create), ALL},
    {SCMP_SYS(timerfd_settime), ALL},
    // Connections that are there already; to make one takes socket and connect, below.
    {SCMP_SYS(accept), FRONT | HOSTS},
    {SCMP_SYS(accept4), FRONT | HOSTS},
    {SCMP_SYS(sendmsg), ALL}, // where to cannot be read; see add_by_argument
    {SCMP_SYS(recvfrom), ALL},
    {SCMP_SYS(recvmsg), ALL},
    {SCMP_SYS(shutdown), ALL},
    {SCMP_SYS(getsockopt), ALL},
    {SCMP_SYS(setsockopt), ALL},
    {SCMP_SYS(getsockname), ALL},
    {SCMP_SYS(getpeername), ALL},
    // Memory.
    {SCMP_SYS(brk), ALL},
    {SCMP_SYS(mmap), ALL},
    {SCMP_SYS(munmap), ALL},
    {SCMP_SYS(mremap), ALL},
    {SCMP_SYS(mprotect), ALL},
    {SCMP_SYS(madvise), ALL},
    {SCMP_SYS(mincore), ALL},
    {SCMP_SYS(membarrier), ALL},
    {SCMP_SYS(mlock), ENGINE},
    {SCMP_SYS(mlock2), ENGINE},
    {SCMP_SYS(munlock), ENGINE},
    {SCMP_SYS(mbind), ENGINE},
    {SCMP_SYS(get_mempolicy), ENGINE},
    {SCMP_SYS(set_mempolicy), ENGINE},
    // Threads and signals.
    {SCMP_SYS(futex), ALL},
    {SCMP_SYS(futex_waitv), ALL},
    {SCMP_SYS(set_robust_list), ALL},
    {SCMP_SYS(get_robust_list), ALL},
    {SCMP_SYS(set_tid_address), ALL},
    {SCMP_SYS(rseq), ALL},
    {SCMP_SYS(sched_yield), ALL},
    {SCMP_SYS(sched_getaffinity), ALL},
    {SCMP_SYS(sched_getparam), ALL},
    {SCMP_SYS(sched_getscheduler), ALL},
    {SCMP_SYS(sched_get_priority_max), ALL},
    {SCMP_SYS(sched_get_priority_min), ALL},
    {SCMP_SYS(getcpu), ALL},
    {SCMP_SYS(exit), ALL},
    {SCMP_SYS(exit_group), ALL},
    {SCMP_SYS(restart_syscall), ALL},
    {SCMP_SYS(sigaltstack), ALL},
    {SCMP_SYS(rt_sigaction), ALL},
    {SCMP_SYS(rt_sigprocmask), ALL},
    {SCMP_SYS(rt_sigreturn), ALL},
    {SCMP_SYS(rt_sigtimedwait), ALL},
    {SCMP_SYS(rt_sigpending), ALL},
    // The time, and what a process asks about itself.
    {SCMP_SYS(clock_gettime), ALL},
    {SCMP_SYS(clock_getres), ALL},
    {SCMP_SYS(clock_nanosleep), ALL},
    {SCMP_SYS(nanosleep), ALL},
    {SCMP_SYS(gettimeofday), ALL},
    {SCMP_SYS(time), ALL},
    {SCMP_SYS(times), ALL},
    {SCMP_SYS(getpid), ALL},
    {SCMP_SYS(getppid), ALL},
    {SCMP_SYS(gettid), ALL},
    {SCMP_SYS(getuid), ALL},
    {SCMP_SYS(geteuid), ALL},
    {SCMP_SYS(getgid), ALL},
    {SCMP_SYS(getegid), ALL},
    {SCMP_SYS(getrusage), ALL},
    {SCMP_SYS(getrlimit), ALL},
    {SCMP_SYS(setrlimit), ALL},
    {SCMP_SYS(sysinfo), ALL},
    {SCMP_SYS(uname), ALL},
    {SCMP_SYS(getrandom), ALL},
    {SCMP_SYS(prctl), ALL},
    {SCMP_SYS(arch_prctl), ALL}, // AMX, thread-local memory
    // Processes.
    {SCMP_SYS(wait4), STARTS},
    {SCMP_SYS(waitid), STARTS},
    {SCMP_SYS(kill), STARTS},
    {SCMP_SYS(signalfd4), LAUNCHER},
    {SCMP_SYS(seccomp), LAUNCHER}, // the others' filters
    {SCMP_SYS(landlock_create_ruleset), LAUNCHER},
    {SCMP_SYS(landlock_add_rule), LAUNCHER},
    {SCMP_SYS(landlock_restrict_self), LAUNCHER},
    {SCMP_SYS(clone3), ALL}, // of this filter; see without_clone3
    // Files that are written.
    {SCMP_SYS(open), BATCHES},
    {SCMP_SYS(openat), BATCHES},
    {SCMP_SYS(pwrite64), BATCHES},
    {SCMP_SYS(ftruncate), BATCHES},
    {SCMP_SYS(fallocate), BATCHES},
    {SCMP_SYS(fsync), BATCHES},
    {SCMP_SYS(fdatasync), BATCHES},
    {SCMP_SYS(flock), BATCHES},
    {SCMP_SYS(fchmod), BATCHES},
    {SCMP_SYS(rename), BATCHES},
    {SCMP_SYS(renameat), BATCHES},
    {SCMP_SYS(renameat2), BATCHES},
    {SCMP_SYS(unlink), BATCHES | LAUNCHER}, // a Unix socket's name
    {SCMP_SYS(unlinkat), BATCHES | LAUNCHER},
    {SCMP_SYS(mkdir), BATCHES},
    {SCMP_SYS(mkdirat), BATCHES},
    {SCMP_SYS(rmdir), BATCHES},
    // Connections to other hosts and to collectors, whose names are looked up.
    {SCMP_SYS(socket), HOSTS | TRACES},
    {SCMP_SYS(connect), HOSTS | TRACES},
    {SCMP_SYS(bind), HOSTS | TRACES},
    {SCMP_SYS(listen), HOSTS},
    {SCMP_SYS(sendmmsg), HOSTS | TRACES},
    {SCMP_SYS(recvmmsg), HOSTS | TRACES},
};

// Allows a call whose argument number `arg` has `value` in its bits `mask`. Flags are tested so:
// with mask O_ACCMODE and value O_RDONLY (0) an open for reading is allowed whatever its other
// flags.
static int allow_if(scmp_filter_ctx f, int call, unsigned arg, uint64_t mask, uint64_t value)
{
    const struct scmp_arg_cmp c = SCMP_CMP64(arg, SCMP_CMP_MASKED_EQ, mask, value);
    return seccomp_rule_add_array(f, SCMP_ACT_ALLOW, call, 1, &c);
}

// Lets sockets send to their other end alone: sendto without an address, and pairs of connected
// types only. With one of datagrams sendmsg could send anything, descriptors included, to any
// socket in the file system, and a filter cannot read its address.
static int add_sockets(scmp_filter_ctx f, unsigned permissions)
{
    enum { ADDRESS = 4, TYPES = 0xf }; // SOCK_CLOEXEC and SOCK_NONBLOCK are above these bits
    int rc = allow_if(f, SCMP_SYS(socketpair), 1, TYPES, SOCK_STREAM);
    if (rc == 0) rc = allow_if(f, SCMP_SYS(socketpair), 1, TYPES, SOCK_SEQPACKET);
    if (rc != 0) return rc;
    if ((permissions & (HOSTS | TRACES)) != 0) {
        return seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(sendto), 0);
    }
    return allow_if(f, SCMP_SYS(sendto), ADDRESS, UINT64_MAX, 0);
}

// Allows what a process does to itself: set its limits and its CPUs, and send the signal of
// abort(). A process that starts others may send any process a signal by kill anyway; its children
// inherit this filter, and their abort() has another number than this process for its argument.
static int add_own(scmp_filter_ctx f, unsigned permissions)
{
    int rc = allow_if(f, SCMP_SYS(prlimit64), 0, UINT32_MAX, 0);
    if (rc == 0) rc = allow_if(f, SCMP_SYS(sched_setaffinity), 0, UINT32_MAX, 0);
    if (rc != 0) return rc;
    if ((permissions & STARTS) != 0)
        return seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 0);
    return allow_if(f, SCMP_SYS(tgkill), 0, UINT32_MAX, (uint64_t)getpid());
}

// Allows the calls that are harmless with some arguments only.
static int add_by_argument(scmp_filter_ctx f, unsigned permissions)
{
    enum {
        NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                     CLONE_NEWPID | CLONE_NEWNET
    };
    static const unsigned long requests[] = {TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO};
    int rc = add_sockets(f, permissions);
    if (rc == 0) rc = add_own(f, permissions);
    if (rc != 0) return rc;
    if ((permissions & STARTS) != 0) {
        rc = allow_if(f, SCMP_SYS(clone), 0, NAMESPACES, 0);
    } else {
        rc = allow_if(f, SCMP_SYS(clone), 0, CLONE_THREAD, CLONE_THREAD);
    }
    if (rc == 0 && (permissions & BATCHES) == 0) { // opens nothing but to read it
        const uint64_t mask = O_ACCMODE | O_CREAT | O_TRUNC;
        rc = allow_if(f, SCMP_SYS(openat), 2, mask, O_RDONLY);
        if (rc == 0) rc = allow_if(f, SCMP_SYS(open), 1, mask, O_RDONLY);
    }
    for (size_t i = 0; i < sizeof requests / sizeof requests[0] && rc == 0; i++) {
        rc = allow_if(f, SCMP_SYS(ioctl), 1, UINT32_MAX, requests[i]);
    }
    return rc;
}

static int fill(scmp_filter_ctx f, unsigned permissions)
{
    int rc = seccomp_attr_set(f, SCMP_FLTATR_CTL_LOG, 1); // the kernel logs what is refused
    // The filter is a binary tree of call numbers, so that a call's time does not depend on its
    // place in the table.
    if (rc == 0) rc = seccomp_attr_set(f, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    for (size_t i = 0; i < sizeof CALLS / sizeof CALLS[0] && rc == 0; i++) {
        if ((CALLS[i].permissions & permissions) != 0) {
            rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, CALLS[i].call, 0);
        }
    }
    return rc == 0 ? add_by_argument(f, permissions) : rc;
}

// Makes clone3 look missing, by a filter of its own: its flags are in memory, where no filter can
// read them, and the C library makes threads with clone where the kernel has no clone3. The main
// filter would do the same, but the kernel would log each thread.
static int without_clone3(void)
{
    scmp_filter_ctx f = seccomp_init(SCMP_ACT_ALLOW);
    if (f == NULL) return -ENOMEM;
    int rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    if (rc == 0) rc = seccomp_load(f);
    seccomp_release(f);
    return rc;
}

int msgl__confine(unsigned permissions, msgl_err *err)
{
    // A library that can do without a call knows ENOSYS from older kernels.
    scmp_filter_ctx f = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
    if (f == NULL) return msgl__err_set(err, MSGL_ENOMEM, "seccomp: out of memory");
    int rc = fill(f, permissions);
    if (rc == 0) rc = without_clone3();
    if (rc == 0) rc = seccomp_load(f);
    seccomp_release(f);
    if (rc == 0) return 0;
    return msgl__err_set(err, MSGL_EIO,
                         "cannot limit the system calls of the server's processes: %s; --seccomp "
                         "off goes without",
                         strerror(-rc));
}
