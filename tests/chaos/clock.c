/* A clock that jumps: the time of day of a process, moved by so many seconds as a file says (CHAOS_CLOCK: eight bytes).
 *
 * Loaded before libc (LD_PRELOAD), so that Python, Java and Rust in one driver see the same clock. Clocks that only
 * grow, by which waits are measured, are left alone, as they are when a real clock is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t moved(void) {
    static volatile int64_t *seconds;
    static int opened;
    if (!opened) {
        const char *path = getenv("CHAOS_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (file >= 0) {
            void *found = mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, file, 0);
            close(file);
            if (found != MAP_FAILED)
                seconds = found;
        }
        opened = 1;
    }
    return seconds ? *seconds : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += moved();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found))
        return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now)
        *now = found.tv_sec;
    return found.tv_sec;
}
