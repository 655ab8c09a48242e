/* Control and figures of the Contigua allocator. malloc, free and the C++ operators need no
 * header: they are the ordinary ones. See contigua_malloc(3). */
#ifndef CONTIGUA_MALLOC_H
#define CONTIGUA_MALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Write all figures as text, cut off and ended by 0 as snprintf does. Returns the length of the
 * whole text. */
size_t contigua_malloc_stats(char *buffer, size_t size);

/* One figure by its name (the first column of the text), or -1. */
int64_t contigua_malloc_figure(const char *name);

/* A setting or a figure by its name. Returns 0, or -1 with errno ENOENT: there is none of this name.
 *
 *   limit, soft_limit       bytes that may be mapped, and above which memory goes back at once; 0: no limit
 *   release_rate            bytes that may go back in a second
 *   interval_milliseconds   how long huge pages are kept whole after use
 *   decay_milliseconds      half-life of free memory; 0: the rate alone decides
 *   harden                  hardening level (read only)
 *   guarded                 mean number of allocations from one that is guarded to the next; 0: none is (read only)
 *   all figures             as contigua_malloc_stats names them (read only)
 */
int contigua_malloc_get(const char *name, uint64_t *value);

/* Change a setting by its name. Returns 0, or -1 with errno: ENOENT, or EPERM if it can only be read. Rate and
 * interval end decay, as in contigua_malloc_set_policy; it can be set again after them. */
int contigua_malloc_set(const char *name, uint64_t value);

/* Give at least `bytes` of free memory back to the system now, or all there is. Returns how much
 * it was. */
size_t contigua_malloc_release(size_t bytes);

/* Never map more than `hard` bytes: allocations fail with ENOMEM. Above `soft` free memory goes
 * back at once. 0: no limit. */
void contigua_malloc_set_limit(size_t soft, size_t hard);

/* Give back at most `rate` bytes a second as time passes, and keep huge pages whole that were in
 * use within the last `interval_milliseconds` (0: the rate alone decides). From then on nothing decays
 * (CONTIGUA_MALLOC_DECAY). */
void contigua_malloc_set_policy(size_t rate, uint64_t interval_milliseconds);

/* Move what the caches of all CPUs, and of the calling thread, hold back into the heap. */
void contigua_malloc_flush(void);

/* Do the periodic work if it is due: for programs with an event loop of their own. Returns 1 if it
 * was. */
int contigua_malloc_periodic(void);

/* Whether an address lies in memory that this allocator has handed out (1), or not (0). For an
 * object larger than 256 KB only its beginning counts. */
int contigua_malloc_owns(const void *memory);

/* Write the sampled heap profile to a file, for `contigua-node heap --profile`; for NULL to the file that
 * CONTIGUA_MALLOC_PROFILE names. Returns 0, or -1 with errno: EINVAL if the process takes no samples
 * (or NULL, and no file is named), EBUSY if another thread is writing one, or why the file could not
 * be written. */
int contigua_malloc_profile(const char *path);

#ifdef __cplusplus
}
#endif

#endif
