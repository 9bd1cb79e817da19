/* Preloaded into a process: its wall clock is off by the seconds that the file $CLOCK_OFFSET holds.
   Monotonic time, and what the kernel itself waits for, stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
  const char *path = getenv("CLOCK_OFFSET");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return 0;
  char text[32] = {0};
  ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  return size > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(id, now);
  if (id == CLOCK_REALTIME) now->tv_sec += offset();
  return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  static int (*real)(struct timeval *restrict, void *restrict);
  if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
  int status = real(now, zone);
  now->tv_sec += offset();
  return status;
}
