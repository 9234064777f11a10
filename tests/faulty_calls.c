/* Preloaded into a process, counts its calls on files below a folder, and at one of them kills it or fills the disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, WRITE, FSYNC, RENAME, UNLINK, CALLS };
enum { COUNT, KILL, FILL };

static char folder[4096];
static int call = -1, number, action;
static atomic_int is_full, *counts; /* shared with the processes that this one forks */

/* Calls below `path` count from now on; the `at`-th `kind`, from 1, is preceded by `what`. */
void arm(const char *path, int kind, int at, int what) {
    counts = mmap(NULL, CALLS * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    strncpy(folder, path, sizeof folder - 1);
    call = kind, number = at, action = what;
}

int counted(int kind) { return counts ? counts[kind] : 0; }

static int fails(int kind, const char *path) {
    if (!folder[0] || !path || !strstr(path, folder)) return 0;
    int count = atomic_fetch_add(&counts[kind], 1) + 1;
    if (kind == call && count == number) {
        if (action == KILL) kill(getpid(), SIGKILL), pause();
        if (action == FILL) is_full = 1;
    }
    if (kind != WRITE || !is_full) return 0;
    errno = ENOSPC;
    return 1;
}

static int fails_on(int kind, int file) {
    if (!folder[0]) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return fails(kind, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WITH_PATH(kind, name, parameters, path, arguments) \
    int name parameters { return fails(kind, path) ? -1 : REAL(name) arguments; }
#define WITH_FILE(result, kind, name, parameters, file, arguments) \
    result name parameters { return fails_on(kind, file) ? -1 : REAL(name) arguments; }
#define OPENS(name, parameters, arguments) \
    int name parameters { \
        va_list rest; \
        va_start(rest, flags); \
        int mode = va_arg(rest, int); \
        va_end(rest); \
        if (flags & (O_WRONLY | O_RDWR)) fails(OPEN, path); \
        return REAL(name) arguments; \
    }
#define STREAMS(name) \
    FILE *name(const char *path, const char *mode) { \
        if (mode[0] != 'r') fails(OPEN, path); \
        return REAL(name)(path, mode); \
    }

OPENS(open, (const char *path, int flags, ...), (path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPENS(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))
STREAMS(fopen)
STREAMS(fopen64)
WITH_FILE(ssize_t, WRITE, write, (int file, const void *data, size_t size), file, (file, data, size))
WITH_FILE(ssize_t, WRITE, writev, (int file, const struct iovec *parts, int size), file, (file, parts, size))
WITH_FILE(int, FSYNC, fsync, (int file), file, (file))
WITH_PATH(RENAME, rename, (const char *from, const char *to), from, (from, to))
WITH_FILE(int, RENAME, renameat, (int at, const char *from, int there, const char *to), at, (at, from, there, to))
WITH_PATH(UNLINK, unlink, (const char *path), path, (path))
WITH_PATH(UNLINK, rmdir, (const char *path), path, (path))
WITH_FILE(int, UNLINK, unlinkat, (int at, const char *path, int flags), at, (at, path, flags))

int statvfs(const char *path, struct statvfs *found) {
    int code = REAL(statvfs)(path, found);
    if (is_full) found->f_bavail = found->f_bfree = 0;
    return code;
}

int statvfs64(const char *path, struct statvfs64 *found) {
    int code = REAL(statvfs64)(path, found);
    if (is_full) found->f_bavail = found->f_bfree = 0;
    return code;
}
