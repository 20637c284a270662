/* Purpose: show how far a long command is, with rate and time left.
 * Owns: one thread between begin and end.
 * Threads: add and say from any; begin and end from the one that owns the value.
 * Errors: none: progress that cannot be shown is not shown.
 * Invariant: writes to stderr only, whole lines in one call; stdout is for results. */
#include "progress.h"

#include "sizes.h"
#include "thread.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define SAID_NS_MIN  1000000000ull        /* shorter work is over before anyone would ask */
#define BAR_TICK_NS  UINT64_C(200000000)  /* 5 a second: smooth to the eye, free of cost */
#define LINE_TICK_NS UINT64_C(5000000000) /* a log of an 8 minute run stays below 100 lines */
#define BAR_CELLS    14                   /* leaves room for the numbers in 80 columns */
#define ETA_AFTER_NS UINT64_C(1000000000) /* before that a rate says little */

uint64_t k3_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static unsigned terminal_columns(void)
{
    struct winsize size;
    memset(&size, 0, sizeof size);
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        return size.ws_col;
    return 80;
}

/* "1.20 GB of 8.00 GB, 2.10 GB/s, 3.2 s left" */
static void put_numbers(const struct k3_progress *p, uint64_t done, uint64_t spent, char *out,
                        size_t cap)
{
    if (!p->total_bytes) {
        snprintf(out, cap, "%s, %s", k3_size_short(done).s, k3_rate_text(done, spent).s);
        return;
    }
    char left[72] = "";
    if (done && done < p->total_bytes && spent > ETA_AFTER_NS) {
        double rest = (double)(p->total_bytes - done) / (double)done * (double)spent;
        if (rest < 1e18)
            snprintf(left, sizeof left, ", %s left", k3_time_text((uint64_t)rest).s);
    }
    snprintf(out, cap, "%s of %s, %s%s", k3_size_short(done).s, k3_size_short(p->total_bytes).s,
             k3_rate_text(done, spent).s, left);
}

static unsigned percent(const struct k3_progress *p, uint64_t done)
{
    if (done >= p->total_bytes)
        return 100;
    return (unsigned)((double)done * 100.0 / (double)p->total_bytes);
}

/* The caller holds the lock. */
static void draw_bar(struct k3_progress *p, const char *numbers, uint64_t done)
{
    char line[384];
    char cells[BAR_CELLS + 1];
    if (p->total_bytes) {
        unsigned full = percent(p, done) * BAR_CELLS / 100;
        memset(cells, '.', BAR_CELLS);
        memset(cells, '#', full);
        cells[BAR_CELLS] = '\0';
        snprintf(line, sizeof line, "%s [%s] %3u %%  %s", p->verb, cells, percent(p, done),
                 numbers);
    } else {
        snprintf(line, sizeof line, "%s  %s", p->verb, numbers);
    }
    unsigned columns = terminal_columns();
    if (columns > 1 && strlen(line) >= columns)
        line[columns - 1] = '\0'; /* a wrapped line could not be taken back by \r */
    fprintf(stderr, "\r%s%s%s\033[K", p->color ? "\033[36m" : "", line, p->color ? "\033[0m" : "");
    fflush(stderr);
    p->bar_shown = true;
}

/* The caller holds the lock. */
static void clear_bar(struct k3_progress *p)
{
    if (p->bar_shown)
        fputs("\r\033[K", stderr);
    p->bar_shown = false;
}

static void show(struct k3_progress *p)
{
    char numbers[256];
    uint64_t done = atomic_load_explicit(&p->done_bytes, memory_order_relaxed);
    put_numbers(p, done, k3_now_ns() - p->begin_ns, numbers, sizeof numbers);
    if (p->terminal)
        draw_bar(p, numbers, done);
    else if (p->total_bytes)
        fprintf(stderr, "%s: %u %%, %s\n", p->verb, percent(p, done), numbers);
    else
        fprintf(stderr, "%s: %s\n", p->verb, numbers);
}

static void *tick(void *argument)
{
    struct k3_progress *p = argument;
    uint64_t step = p->terminal ? BAR_TICK_NS : LINE_TICK_NS;
    uint64_t next = p->begin_ns + step;
    pthread_mutex_lock(&p->lock);
    while (!p->ended) {
        struct timespec until = {(time_t)(next / 1000000000), (long)(next % 1000000000)};
        pthread_cond_timedwait(&p->wake, &p->lock, &until);
        if (p->ended || k3_now_ns() < next)
            continue;
        show(p);
        next = k3_now_ns() + step;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static bool stderr_is_terminal(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

void k3_progress_begin(struct k3_progress *progress, const char *verb, uint64_t total_bytes,
                       bool quiet)
{
    memset(progress, 0, sizeof *progress);
    atomic_init(&progress->done_bytes, 0);
    progress->verb = verb;
    progress->total_bytes = total_bytes;
    progress->begin_ns = k3_now_ns();
    progress->quiet = quiet;
    progress->terminal = stderr_is_terminal();
    const char *no_color = getenv("NO_COLOR");
    progress->color = progress->terminal && !(no_color && *no_color);
    pthread_mutex_init(&progress->lock, NULL);
    pthread_condattr_t attribute;
    pthread_condattr_init(&attribute);
    pthread_condattr_setclock(&attribute, CLOCK_MONOTONIC);
    pthread_cond_init(&progress->wake, &attribute);
    pthread_condattr_destroy(&attribute);
    if (!quiet)
        progress->ticking = k3_thread_start(&progress->thread, tick, progress) == 0;
}

void k3_progress_add(struct k3_progress *progress, uint64_t bytes)
{
    atomic_fetch_add_explicit(&progress->done_bytes, bytes, memory_order_relaxed);
}

void k3_progress_say(struct k3_progress *progress, const char *format, ...)
{
    if (progress->quiet)
        return;
    pthread_mutex_lock(&progress->lock);
    clear_bar(progress);
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    pthread_mutex_unlock(&progress->lock);
}

uint64_t k3_progress_end(struct k3_progress *progress)
{
    uint64_t spent = k3_now_ns() - progress->begin_ns;
    pthread_mutex_lock(&progress->lock);
    progress->ended = true;
    pthread_cond_signal(&progress->wake);
    pthread_mutex_unlock(&progress->lock);
    if (progress->ticking)
        pthread_join(progress->thread, NULL);
    if (!progress->quiet && spent >= SAID_NS_MIN) {
        uint64_t done = atomic_load_explicit(&progress->done_bytes, memory_order_relaxed);
        clear_bar(progress);
        fprintf(stderr, "%s: %s in %s, %s\n", progress->verb, k3_size_text(done).s,
                k3_time_text(spent).s, k3_rate_text(done, spent).s);
    }
    pthread_cond_destroy(&progress->wake);
    pthread_mutex_destroy(&progress->lock);
    return spent;
}
