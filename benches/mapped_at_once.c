/* Preloaded: memory that a program reserves without access is mapped writable at once. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    int kind = MAP_PRIVATE | MAP_ANONYMOUS;

    if (protection == PROT_NONE && (flags & (kind | MAP_FIXED)) == kind)
        protection = PROT_READ | PROT_WRITE;
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

void *mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    return mmap(address, bytes, protection, flags, file, offset);
}
