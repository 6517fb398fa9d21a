/* SPDX-License-Identifier: Apache-2.0 */
/* A clock that is off by $CLOCK_OFF seconds, for a process that is started with this library
   (LD_PRELOAD). Only the time of day is: how long something takes is measured as ever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t off(void) {
  const char *seconds = getenv("CLOCK_OFF");
  return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t which, struct timespec *found) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(which, found);
  if (!status && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) found->tv_sec += off();
  return status;
}

int gettimeofday(struct timeval *found, void *zone) {
  struct timespec now;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  found->tv_sec = now.tv_sec;
  found->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *found) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (found) *found = now.tv_sec;
  return now.tv_sec;
}
