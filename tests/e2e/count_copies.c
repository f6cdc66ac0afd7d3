/* Counts what a process copies from memory to memory: preloaded, it stands in for memcpy and
 * memmove. Copies under a kilobyte are not payload. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stddef.h>

#define PAYLOAD_MIN 1024

static _Atomic unsigned long copied;

unsigned long copied_bytes(void) { return atomic_load(&copied); }

/* By hand, as any helper might call the function that it helps. */
static void *copy(void *to, const void *from, size_t size) {
  char *d = to;
  const char *s = from;
  if (size >= PAYLOAD_MIN) atomic_fetch_add(&copied, size);
  if (d == s || size == 0) return to;
  if (d < s || d >= s + size) {
    __asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(size) : : "memory");
  } else {
    d += size - 1;
    s += size - 1;
    __asm__ volatile("std; rep movsb; cld" : "+D"(d), "+S"(s), "+c"(size) : : "memory");
  }
  return to;
}

void *memcpy(void *to, const void *from, size_t size) { return copy(to, from, size); }
void *memmove(void *to, const void *from, size_t size) { return copy(to, from, size); }
void *mempcpy(void *to, const void *from, size_t size) { return (char *)copy(to, from, size) + size; }
void *__memcpy_chk(void *to, const void *from, size_t size, size_t room) {
  (void)room;
  return copy(to, from, size);
}
void *__memmove_chk(void *to, const void *from, size_t size, size_t room) {
  (void)room;
  return copy(to, from, size);
}
