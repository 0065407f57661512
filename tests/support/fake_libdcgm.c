/* A libdcgm and a host engine that only know dcgmEntitiesGetLatestValues, with what that takes of a processor.
 *
 * The client does step by step what DCGM's does in the process of its caller (DCGM 4.6, dcgmlib/src/DcgmApi.cpp and
 * DcgmClientHandler.cpp, common/transport/DcgmIpc.cpp): it clears a message of 4 MiB on the heap, hands its first 8.5 KiB
 * to a thread with an event loop and waits until that has put it into the socket's queue; the loop writes it, and reads
 * the answer in pieces of 4 KiB; a third thread hands it to the caller, who copies it twice. The engine is another
 * process and clears a message of its own: what it takes is not the caller's.
 *
 * Numbers are 0.5 for profiling fields and 50 for others; times are those of a table, one row per field: start and
 * interval in microseconds, interval 0 for what nobody watches.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define BUFFER_BYTES 4186112
#define PIECE 4096
#define MAX_ENTITIES 1024
#define MAX_FIELDS 128
#define TABLE_ROWS 65536
#define FIRST_PROFILING 1001
enum { OK = 0, NO_DATA = -14, NOT_WATCHED = -16, CONNECTION_NOT_VALID = -21 };

typedef struct { uint32_t group, id; } entity_t;
typedef struct { int32_t magic, request, length, type, status, unused; } envelope_t;
typedef struct {
  uint32_t header[6], group;
  entity_t entities[MAX_ENTITIES];
  uint32_t entity_count, field_group;
  uint16_t fields[MAX_FIELDS];
  uint32_t field_count, flags, answer, used, unused;
  char buffer[BUFFER_BYTES];
} message_t;
#define HEAD_BYTES (sizeof(message_t) - BUFFER_BYTES)
typedef struct {
  uint16_t length;
  uint8_t version, type;
  int8_t status;
  uint8_t group;
  uint16_t field;
  int64_t time_us;
  uint32_t entity, unused;
  union { int64_t i64; double dbl; } value;
} stored_t;
typedef struct {
  uint32_t version, group, entity;
  uint16_t field;
  int16_t type;
  int32_t status;
  uint32_t unused;
  int64_t time_us;
  union { int64_t i64; double dbl; char blob[4096]; } value;
} value_t;
typedef struct { envelope_t envelope; char *bytes; } packet_t;

static int connection = -1, loop = -1, bell = -1;
static long requests;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static packet_t outgoing, incoming;
static sem_t queued, arrived, answered;

/* ---- the client ---- */
static void watch_for(uint32_t events, int how) {
  struct epoll_event event = {.events = events, .data.fd = connection};
  epoll_ctl(loop, how, connection, &event);
}

static int write_some(char *unsent, size_t *left) {
  struct iovec part = {unsent, *left};
  ssize_t count = writev(connection, &part, 1);
  if (count < 0) return errno != EAGAIN;
  memmove(unsent, unsent + count, *left - count);
  *left -= count;
  return 0;
}

static int read_some(char *unread, size_t *held) {
  int waiting = 0;
  ioctl(connection, FIONREAD, &waiting);
  struct iovec part = {unread + *held, waiting > 0 && waiting < PIECE ? waiting : PIECE};
  ssize_t count = readv(connection, &part, 1);
  if (count <= 0) return errno != EAGAIN;
  *held += count;
  return 0;
}

/* Hand a whole packet to the third thread. */
static void deliver(char *unread, size_t *held) {
  envelope_t envelope;
  memcpy(&envelope, unread, sizeof envelope);
  char *bytes = malloc(envelope.length);
  memcpy(bytes, unread + sizeof envelope, envelope.length);
  *held -= sizeof envelope + envelope.length;
  memmove(unread, unread + sizeof envelope + envelope.length, *held);
  pthread_mutex_lock(&lock);
  incoming.envelope = envelope;
  incoming.bytes = bytes;
  pthread_mutex_unlock(&lock);
  sem_post(&arrived);
}

static void *run_loop(void *unused) {
  char *unread = malloc(sizeof(message_t) + PIECE), *unsent = malloc(2 * HEAD_BYTES);
  size_t held = 0, left = 0;
  int failed = 0;
  struct epoll_event events[8];
  while (!failed) {
    int count = epoll_wait(loop, events, 8, -1);
    for (int i = 0; i < count; i++) {
      if (events[i].data.fd == bell) {
        uint64_t rung;
        if (read(bell, &rung, sizeof rung) < 0) continue;
        pthread_mutex_lock(&lock);
        memcpy(unsent + left, &outgoing.envelope, sizeof(envelope_t));
        memcpy(unsent + left + sizeof(envelope_t), outgoing.bytes, outgoing.envelope.length);
        left += sizeof(envelope_t) + outgoing.envelope.length;
        pthread_mutex_unlock(&lock);
        watch_for(EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
        sem_post(&queued);
        continue;
      }
      if (events[i].events & EPOLLOUT) {
        failed |= write_some(unsent, &left);
        if (!left) watch_for(EPOLLIN, EPOLL_CTL_MOD);
      }
      if (events[i].events & (EPOLLIN | EPOLLHUP)) {
        failed |= read_some(unread, &held);
        envelope_t *envelope = (envelope_t *)unread;
        if (held >= sizeof *envelope && held >= sizeof *envelope + envelope->length) deliver(unread, &held);
      }
    }
  }
  pthread_mutex_lock(&lock);
  close(connection);
  connection = -1;
  incoming.bytes = NULL;
  pthread_mutex_unlock(&lock);
  sem_post(&arrived);
  return unused;
}

static void *run_worker(void *unused) {
  for (;;) {
    sem_wait(&arrived);
    sem_post(&answered);
  }
  return unused;
}

/* Connect to the engine at a path; 0 for success. */
API int fake_connect(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  connection = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(connection, (struct sockaddr *)&address, sizeof address)) return CONNECTION_NOT_VALID;
  fcntl(connection, F_SETFL, fcntl(connection, F_GETFL) | O_NONBLOCK);
  loop = epoll_create1(0);
  bell = eventfd(0, EFD_NONBLOCK);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = bell};
  epoll_ctl(loop, EPOLL_CTL_ADD, bell, &event);
  watch_for(EPOLLIN, EPOLL_CTL_ADD);
  sem_init(&queued, 0, 0); sem_init(&arrived, 0, 0); sem_init(&answered, 0, 0);
  pthread_t reader, worker;
  if (pthread_create(&reader, NULL, run_loop, NULL) || pthread_create(&worker, NULL, run_worker, NULL)) return -1;
  pthread_setname_np(reader, "libdcgm loop");
  pthread_setname_np(worker, "libdcgm worker");
  return OK;
}

API long fake_requests(void) { return requests; }

/* Send the head of a message, and put the answer over it. */
static int exchange(message_t *message) {
  char *bytes = malloc(HEAD_BYTES);
  memcpy(bytes, message, HEAD_BYTES);
  pthread_mutex_lock(&lock);
  int connected = connection >= 0;
  outgoing = (packet_t){{.request = (int)++requests, .length = HEAD_BYTES}, bytes};
  pthread_mutex_unlock(&lock);
  uint64_t one = 1;
  if (!connected || write(bell, &one, sizeof one) < 0) { free(bytes); return CONNECTION_NOT_VALID; }
  sem_wait(&queued);
  free(bytes);
  sem_wait(&answered);
  pthread_mutex_lock(&lock);
  packet_t packet = incoming;
  pthread_mutex_unlock(&lock);
  if (!packet.bytes) return CONNECTION_NOT_VALID;
  memcpy(message, packet.bytes, packet.envelope.length);
  free(packet.bytes);
  return message->answer ? (int)message->answer : packet.envelope.status;
}

API int dcgmEntitiesGetLatestValues(void *handle, const entity_t *entities, unsigned entity_count,
                                    const uint16_t *fields, unsigned field_count, unsigned flags, value_t *values) {
  (void)handle;
  message_t *message = malloc(sizeof *message);
  memset(message, 0, sizeof *message);
  /* Or the compiler would leave out what nobody reads. */
  __asm__ volatile("" : : "r"(message) : "memory");
  memcpy(message->entities, entities, entity_count * sizeof *entities);
  memcpy(message->fields, fields, field_count * sizeof *fields);
  message->entity_count = entity_count;
  message->field_count = field_count;
  message->flags = flags;
  int code = exchange(message);
  if (!code) {
    stored_t *stored = malloc(message->used);
    memcpy(stored, message->buffer, message->used);
    for (size_t i = 0; i < message->used / sizeof *stored; i++) {
      values[i].version = stored[i].version;
      values[i].group = stored[i].group;
      values[i].entity = stored[i].entity;
      values[i].field = stored[i].field;
      values[i].type = stored[i].type;
      values[i].unused = 0;
      values[i].status = stored[i].status;
      values[i].time_us = stored[i].time_us;
      values[i].value.i64 = stored[i].value.i64;
    }
    free(stored);
  }
  free(message);
  return code;
}

/* ---- the engine ---- */
static int transfer(int from, void *bytes, size_t left, int sends) {
  for (char *at = bytes; left;) {
    ssize_t count = sends ? write(from, at, left) : read(from, at, left);
    if (count <= 0) return -1;
    at += count;
    left -= count;
  }
  return 0;
}

static int64_t now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static stored_t newest(const entity_t *entity, uint16_t field, const int64_t *row, int is_double) {
  stored_t stored = {.length = sizeof stored, .version = 1, .type = is_double ? 'd' : 'i', .group = entity->group,
                     .entity = entity->id, .field = field, .status = row[1] ? NO_DATA : NOT_WATCHED};
  int64_t age_us = now_us() - row[0];
  /* The third number of a row says that nothing ever happens. */
  if (!row[1] || age_us < 0 || row[2]) return stored;
  stored.status = OK;
  stored.time_us = row[0] + age_us / row[1] * row[1];
  if (is_double) stored.value.dbl = field < FIRST_PROFILING ? 50.0 : 0.5;
  else stored.value.i64 = 50;
  return stored;
}

/* Answer one client at a path until it goes; the table has four numbers per field: start, interval, idle, is double. */
API int fake_serve(const char *path, const char *table_path) {
  int table_file = open(table_path, O_RDONLY);
  const int64_t(*table)[4] = mmap(NULL, TABLE_ROWS * sizeof *table, PROT_READ, MAP_SHARED, table_file, 0);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  if (table == MAP_FAILED || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1)) return -1;
  int client = accept(listener, NULL, NULL);
  envelope_t envelope;
  while (!transfer(client, &envelope, sizeof envelope, 0)) {
    message_t *message = malloc(sizeof *message);
    memset(message, 0, sizeof *message);
    __asm__ volatile("" : : "r"(message) : "memory");
    if (transfer(client, message, envelope.length, 0)) break;
    stored_t *stored = (stored_t *)message->buffer;
    for (unsigned e = 0; e < message->entity_count; e++)
      for (unsigned f = 0; f < message->field_count; f++, stored++) {
        const int64_t *row = table[message->fields[f]];
        *stored = newest(&message->entities[e], message->fields[f], row, row[3] != 0);
      }
    message->used = (char *)stored - message->buffer;
    envelope.length = HEAD_BYTES + message->used;
    if (transfer(client, &envelope, sizeof envelope, 1) || transfer(client, message, envelope.length, 1)) break;
    free(message);
  }
  return 0;
}
