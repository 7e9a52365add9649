// A plugin of qemu-user that counts the instructions of the program. It prints the number when the program ends. The
// few declarations of qemu's plugin interface (version 1) that it needs are written out: Debian has no header for it.
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
enum { add_u64 = 0 };
extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                                  void (*cb)(qemu_plugin_id_t, struct qemu_plugin_tb*));
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb* tb, int op, void* counter,
                                                     uint64_t add);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*cb)(qemu_plugin_id_t, void*),
                                           void* data);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* tb);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t executed;

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb* tb) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(tb, add_u64, &executed, qemu_plugin_tb_n_insns(tb));
}

static void ended(qemu_plugin_id_t id, void* data) {
  (void)id, (void)data;
  fprintf(stderr, "%" PRIu64 "\n", executed);
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void* info,
                                                               int argc, char** argv) {
  (void)info, (void)argc, (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(id, &translated);
  qemu_plugin_register_atexit_cb(id, &ended, NULL);
  return 0;
}
