/* listen.c - the sockets that clients connect to: TCP addresses and a Unix socket.
 *
 * An error of accept() never stops the accepting of others (CVE-2025-48367): an aborted handshake is
 * skipped; when file descriptors are used up, the sockets rest for a moment instead of turning the
 * loop at full speed, and try again. A wake accepts a bounded number, so a storm of connects takes
 * turns with the clients that are there.
 *
 * The Unix socket is bound under a umask that gives it its final permissions at once: with a chmod
 * after bind there is a moment in which anybody connects (CVE-2023-45145). A socket file that a
 * crashed server left behind is replaced, that of a living one is an error. Main thread only. */
#include "server/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/option.h"

enum {
    MAX_SOCKETS = 16,
    ACCEPTS_PER_WAKE = 64, /* fewer when the slice of the round is over */
    REST_MS =
        100, /* pause after EMFILE: long enough to cost nothing, short enough to be unnoticed */
};

struct listeners {
    struct conn_loop *loop; /* borrowed */
    void (*accepted)(void *owner, int fd, const struct peer *peer);
    void *owner;
    int n;
    struct event *events[MAX_SOCKETS]; /* owns */
    int fds[MAX_SOCKETS];              /* owns */
    struct event *rest;                /* owns; runs while accepting is paused */
    char *unix_path;                   /* owns; NULL: none bound */
};

/* ---- accepting -------------------------------------------------------------------------------- */

static void address_text(const struct sockaddr_storage *a, const struct listeners *l, char *out)
{
    char ip[INET6_ADDRSTRLEN] = "";
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)a;
        (void)inet_ntop(AF_INET, &in->sin_addr, ip, sizeof ip);
        snprintf(out, PEER_TEXT, "%s:%d", ip, ntohs(in->sin_port));
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *)a;
        (void)inet_ntop(AF_INET6, &in->sin6_addr, ip, sizeof ip);
        snprintf(out, PEER_TEXT, "[%s]:%d", ip, ntohs(in->sin6_port));
    } else {
        snprintf(out, PEER_TEXT, "%s:0", l->unix_path ? l->unix_path : "");
    }
}

static bool address_is_loopback(const struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    if (a->ss_family != AF_INET6)
        return true;
    const struct in6_addr *ip = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(ip) || (IN6_IS_ADDR_V4MAPPED(ip) && ip->s6_addr[12] == 127);
}

static void welcome(struct listeners *l, int fd, const struct sockaddr_storage *from)
{
    struct peer peer = {.is_unix = from->ss_family != AF_INET && from->ss_family != AF_INET6,
                        .is_loopback = address_is_loopback(from)};
    struct sockaddr_storage own = {0};
    socklen_t len = sizeof own;
    (void)getsockname(fd, (struct sockaddr *)&own, &len); /* only shown; stays empty on an error */
    address_text(from, l, peer.address);
    address_text(&own, l, peer.local);
    l->accepted(l->owner, fd, &peer);
}

static void rest(struct listeners *l, int error)
{
    struct timeval pause = {0, REST_MS * 1000};
    log_warning(LOG_NET, "accept: %s; trying again in %d ms", strerror(error), REST_MS);
    for (int i = 0; i < l->n; i++)
        (void)event_del(l->events[i]);
    (void)evtimer_add(l->rest, &pause);
}

static void on_rested(evutil_socket_t fd, short what, void *arg)
{
    struct listeners *l = arg;
    for (int i = 0; i < l->n; i++)
        (void)event_add(l->events[i], NULL);
}

static bool is_passing(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK;
}

/* The connection that was to be accepted failed, or a signal came: others may be waiting. */
static bool is_of_one_peer(int error)
{
    return error == EINTR || error == ECONNABORTED || error == EPROTO || error == EPERM ||
           error == ENETDOWN || error == EHOSTUNREACH || error == ENETUNREACH;
}

static void on_acceptable(evutil_socket_t fd, short what, void *arg)
{
    struct listeners *l = arg;
    conn_loop_enter(l->loop);
    for (int i = 0; i < ACCEPTS_PER_WAKE && (i == 0 || !conn_loop_is_over(l->loop)); i++) {
        struct sockaddr_storage from = {0};
        socklen_t len = sizeof from;
        int client = l->loop->sockets->accept(fd, (struct sockaddr *)&from, &len);
        if (client >= 0) {
            welcome(l, client, &from);
        } else if (is_passing(errno)) {
            return;
        } else if (!is_of_one_peer(errno)) {
            rest(l, errno);
            return;
        }
    }
}

/* ---- opening ---------------------------------------------------------------------------------- */

static int add_socket(struct listeners *l, int fd, int backlog, const char *name, struct err *err)
{
    if (listen(fd, backlog) < 0)
        return err_set(err, "cannot listen on %s: %s", name, strerror(errno));
    l->fds[l->n] = fd;
    l->events[l->n] = event_new(l->loop->base, fd, EV_READ | EV_PERSIST, on_acceptable, l);
    ASSERT(l->events[l->n]);
    (void)event_add(l->events[l->n], NULL);
    l->n++;
    return 0;
}

static int bind_one(struct listeners *l, const struct addrinfo *a, int backlog, const char *name,
                    struct err *err)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_set(err, "cannot open a socket for %s: %s", name, strerror(errno));
    int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    int rc = 0;
    if (bind(fd, a->ai_addr, a->ai_addrlen) < 0)
        rc = err_set(err, "cannot bind %s: %s", name, strerror(errno));
    if (rc == 0)
        rc = add_socket(l, fd, backlog, name, err);
    if (rc < 0)
        close(fd);
    return rc;
}

/* One word of `bind`: an address, "*", "::*"; with '-' in front it may be missing here. */
static int bind_word(struct listeners *l, const struct listen_config *config, const char *word,
                     struct err *err)
{
    bool optional = *word == '-';
    word += optional;
    const char *host = strcmp(word, "*") == 0 ? "0.0.0.0" : strcmp(word, "::*") == 0 ? "::" : word;
    char port[16], name[160];
    snprintf(port, sizeof port, "%d", config->port);
    snprintf(name, sizeof name, "%s port %s", host, port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    int rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0)
        rc = err_set(err, "cannot bind %s: %s", name, gai_strerror(rc));
    else if (l->n == MAX_SOCKETS)
        rc = err_set(err, "bind names more than %d addresses", MAX_SOCKETS - 1);
    else
        rc = bind_one(l, found, config->backlog, name, err);
    int error = errno;
    if (found)
        freeaddrinfo(found);
    bool is_missing = error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
    return rc < 0 && optional && is_missing ? 0 : rc;
}

static int open_tcp(struct listeners *l, const struct listen_config *config, struct err *err)
{
    struct str words[MAX_SOCKETS] = {{0}};
    int n = option_split(bytes_from(config->bind), words, MAX_SOCKETS - 1);
    if (n <= 0)
        return err_set(err, "bind must name 1 to %d addresses, or set port to 0", MAX_SOCKETS - 1);
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = bind_word(l, config, words[i].data, err);
    for (int i = 0; i < n; i++)
        str_free(&words[i]);
    if (rc == 0 && l->n == 0)
        rc = err_set(err, "none of the addresses in bind '%s' exists", config->bind);
    return rc;
}

/* Removes what a dead server left at the path; an error when somebody lives there. */
static int clear_unix_path(const struct sockaddr_un *a, struct err *err)
{
    struct stat info;
    if (lstat(a->sun_path, &info) < 0)
        return 0;
    if (!S_ISSOCK(info.st_mode))
        return err_set(err, "unixsocket %s exists and is not a socket", a->sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool alive = fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof *a) == 0;
    if (fd >= 0)
        close(fd);
    if (alive)
        return err_set(err, "unixsocket %s: another server listens there", a->sun_path);
    if (unlink(a->sun_path) < 0)
        return err_set(err, "cannot remove the old unixsocket %s: %s", a->sun_path,
                       strerror(errno));
    return 0;
}

static int bind_unix(int fd, const struct sockaddr_un *a, const char *permission, struct err *err)
{
    mode_t before = 0;
    if (*permission)
        before = umask((mode_t)(~strtol(permission, NULL, 8) & 0777));
    int rc = bind(fd, (const struct sockaddr *)a, sizeof *a);
    int error = errno;
    if (*permission)
        (void)umask(before);
    return rc == 0 ? 0
                   : err_set(err, "cannot bind unixsocket %s: %s", a->sun_path, strerror(error));
}

static int open_unix(struct listeners *l, const struct listen_config *config, struct err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t len = strlen(config->unix_path);
    if (len >= sizeof a.sun_path)
        return err_set(err, "unixsocket: the path has %zu bytes, at most %zu fit", len,
                       sizeof a.sun_path - 1);
    memcpy(a.sun_path, config->unix_path, len + 1);
    if (clear_unix_path(&a, err) < 0)
        return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_set(err, "cannot open a Unix socket: %s", strerror(errno));
    if (bind_unix(fd, &a, config->unix_permission, err) < 0) {
        close(fd);
        return -1;
    }
    l->unix_path = xstrdup(config->unix_path);
    if (add_socket(l, fd, config->backlog, config->unix_path, err) == 0)
        return 0;
    close(fd);
    return -1;
}

struct listeners *listeners_open(struct conn_loop *loop, const struct listen_config *config,
                                 void (*accepted)(void *owner, int fd, const struct peer *peer),
                                 void *owner, struct err *err)
{
    struct listeners *l = xcalloc(1, sizeof *l);
    l->loop = loop;
    l->accepted = accepted;
    l->owner = owner;
    l->rest = evtimer_new(loop->base, on_rested, l);
    ASSERT(l->rest);
    int rc = config->port > 0 ? open_tcp(l, config, err) : 0;
    if (rc == 0 && *config->unix_path)
        rc = open_unix(l, config, err);
    if (rc == 0)
        return l;
    listeners_free(l);
    return NULL;
}

void listeners_stop(struct listeners *l)
{
    (void)evtimer_del(l->rest);
    while (l->n > 0) {
        l->n--;
        event_free(l->events[l->n]);
        close(l->fds[l->n]);
    }
    if (l->unix_path)
        (void)unlink(l->unix_path); /* gone already is as good */
    xfree(l->unix_path);
    l->unix_path = NULL;
}

void listeners_free(struct listeners *l)
{
    if (!l)
        return;
    listeners_stop(l);
    event_free(l->rest);
    xfree(l);
}

void socket_set_options(int fd, int64_t keepalive_s)
{
    int on = 1, idle = (int)keepalive_s, interval = idle / 3 > 0 ? idle / 3 : 1, probes = 3;
    /* all of them are comforts: a socket that refuses one still works */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (idle == 0)
        return;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}
