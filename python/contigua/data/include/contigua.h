/*
 * contigua.h: say in a program which part of it `contigua run --region markers` simulates.
 *
 *     #include <contigua.h>
 *
 *     contigua_region_begin();
 *     ...what is of interest...
 *     contigua_region_end();
 *
 * Compile with -I"$(contigua header)". Outside of the simulator both do nothing, in a few cycles.
 * For x86-64, gcc and clang, C and C++. There is one region for all threads and processes: whoever
 * begins it begins it for all. It may begin and end any number of times.
 *
 * The markers are those of the simulator Sniper: xchg %bx, %bx, with the command in %rax.
 *
 * Licence: MIT OR Apache-2.0, as all of Contigua; this file may be copied into any program.
 */
#ifndef CONTIGUA_H
#define CONTIGUA_H

#if !defined(__x86_64__)
#error "contigua.h is for x86-64 programs"
#endif

/*
 * The jumps give the marker a block of its own, so that the region begins and ends exactly there; in
 * eight aligned bytes it and its command never lie on two pages. "memory": what is of interest stays
 * on its side.
 */
#define CONTIGUA_MARKER(command)                         \
    __asm__ __volatile__("jmp 0f\n\t"                    \
                         ".p2align 3\n"                  \
                         "0:\n\t"                        \
                         "movl $" #command ", %%eax\n\t" \
                         "xchgw %%bx, %%bx\n\t"          \
                         "jmp 1f\n"                      \
                         "1:"                            \
                         :                               \
                         :                               \
                         : "rax", "memory")

/* The region begins, unless it has begun. */
static __inline__ void contigua_region_begin(void)
{
    CONTIGUA_MARKER(1);
}

/* The region ends, if it has begun. */
static __inline__ void contigua_region_end(void)
{
    CONTIGUA_MARKER(2);
}

#endif
