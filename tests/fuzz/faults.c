/* Counts the calls of a process that change files, and lets one of them meet a fault: the process is killed
 * there, a write half done, or the disk is full from there on. Loaded before everything else (LD_PRELOAD), so that
 * it also sees SQLite, polars and the rest. Only calls on regular files and names count. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { KILLED = 0, DISK_FULL = 1 };
struct shared { long seen, met; };

static struct shared *watch;
static long at;
static int fault;

/* Begin to count; the `number`-th call from here meets the fault. What happened is written to `where`. */
void faults_arm(long number, int what, struct shared *where) { at = number, fault = what, watch = where; }

static int is_file(int fd) {
    struct stat found;
    return watch && !fstat(fd, &found) && S_ISREG(found.st_mode);
}

/* Whether this call is the one; a full disk refuses every call after it, too. */
static int meets(int needs_space) {
    if (!watch || (fault == DISK_FULL && !needs_space)) return 0;
    long number = watch->seen++;
    if (fault == DISK_FULL ? number < at : number != at) return 0;
    watch->met = 1;
    return 1;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static long refuse(void) { errno = ENOSPC; return -1; }

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define NAMES(name, parameters, arguments, ...) \
    int name parameters { \
        REAL(int, name, __VA_ARGS__); \
        if (meets(0)) die(); \
        return real arguments; \
    }

#define ON_FILE(name, parameters, arguments, ...) \
    int name parameters { \
        REAL(int, name, __VA_ARGS__); \
        if (is_file(fd) && meets(1)) { if (fault == KILLED) die(); return (int)refuse(); } \
        return real arguments; \
    }

#define WRITES(name, parameters, half, arguments, ...) \
    ssize_t name parameters { \
        REAL(ssize_t, name, __VA_ARGS__); \
        if (is_file(fd) && meets(1)) { \
            if (fault == DISK_FULL) return refuse(); \
            (void)!real half; \
            die(); \
        } \
        return real arguments; \
    }

NAMES(rename, (const char *a, const char *b), (a, b), const char *, const char *)
NAMES(renameat, (int c, const char *a, int d, const char *b), (c, a, d, b), int, const char *, int, const char *)
NAMES(unlink, (const char *a), (a), const char *)
NAMES(unlinkat, (int c, const char *a, int flags), (c, a, flags), int, const char *, int)
NAMES(rmdir, (const char *a), (a), const char *)
NAMES(mkdir, (const char *a, mode_t mode), (a, mode), const char *, mode_t)
ON_FILE(fsync, (int fd), (fd), int)
ON_FILE(fdatasync, (int fd), (fd), int)
ON_FILE(ftruncate, (int fd, off_t size), (fd, size), int, off_t)
ON_FILE(ftruncate64, (int fd, off64_t size), (fd, size), int, off64_t)
WRITES(write, (int fd, const void *data, size_t size), (fd, data, size / 2), (fd, data, size), int, const void *,
       size_t)
WRITES(pwrite, (int fd, const void *data, size_t size, off_t to), (fd, data, size / 2, to), (fd, data, size, to),
       int, const void *, size_t, off_t)
WRITES(pwrite64, (int fd, const void *data, size_t size, off64_t to), (fd, data, size / 2, to),
       (fd, data, size, to), int, const void *, size_t, off64_t)
WRITES(writev, (int fd, const struct iovec *parts, int count), (fd, parts, count / 2), (fd, parts, count), int,
       const struct iovec *, int)
