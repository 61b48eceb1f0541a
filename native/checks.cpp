// What a transport is given, held against what it needs, before anything starts.
#include "transport.h"

namespace layercast {

namespace {

std::string number(std::uint64_t value) { return std::to_string(value); }

void expect_count(const char* name, std::size_t expected, std::size_t got, const char* order) {
  if (expected == got) return;
  refuse(Code::kArgument, std::string(name) + ": expected " + number(expected) + " pointers (" + order +
                              "), got " + number(got));
}

void expect_set(const char* name, const std::vector<std::byte*>& pointers) {
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    if (pointers[i] == nullptr) {
      refuse(Code::kArgument,
             std::string(name) + "[" + number(i) + "]: expected an address, got a null pointer");
    }
  }
}

// T26: size x experts, base included, must stay inside the address space.
void expect_extent(std::size_t kind, const std::byte* base, std::size_t bytes, std::size_t experts) {
  std::size_t extent = 0;
  const bool overflows = __builtin_mul_overflow(bytes, experts, &extent) ||
                         extent > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(base);
  if (!overflows) return;
  refuse(Code::kArgument, "destination of kind " + number(kind) + ": " + number(experts) + " experts of " +
                              number(bytes) + " bytes behind its address overflow the address space");
}

}  // namespace

void check_options(const TransportOptions& options, const ControlBlock& control) {
  const bool version2 = control.version() == kVersionExperts;
  const std::size_t kinds = options.kind_bytes.size(), slots = control.slots();
  if (kinds == 0) refuse(Code::kArgument, "kind_bytes: expected at least one kind, got none");
  std::size_t expert_bytes = 0;
  for (std::size_t k = 0; k < kinds; ++k) {
    if (options.kind_bytes[k] == 0)
      refuse(Code::kArgument, "kind_bytes[" + number(k) + "]: expected > 0, got 0");
    if (__builtin_add_overflow(expert_bytes, options.kind_bytes[k], &expert_bytes)) {
      refuse(Code::kArgument, "kind_bytes: their sum overflows");
    }
  }
  std::size_t layer_bytes = 0;
  if (options.experts == 0) refuse(Code::kArgument, "num_experts: expected > 0, got 0");
  if (__builtin_mul_overflow(expert_bytes, options.experts, &layer_bytes)) {
    refuse(Code::kArgument, "num_experts: " + number(options.experts) + " experts of " +
                                number(expert_bytes) + " bytes overflow the address space");
  }
  if (options.device_layers == 0) refuse(Code::kArgument, "device_layers: expected > 0, got 0");
  if (options.layer_limit_ns == 0)
    refuse(Code::kArgument, "timeout: expected > 0 (or None for no limit), got 0");
  if (options.join_limit_ns == 0) refuse(Code::kArgument, "join_timeout: expected > 0 (or None), got 0");
  if (options.writer_limit_ns == 0) refuse(Code::kArgument, "writer_timeout: expected > 0 (or None), got 0");
  if (options.device == nullptr) refuse(Code::kArgument, "device: expected a device, got none");

  const std::size_t local = version2 ? slots * kinds : slots;
  expect_count("local_host_ptrs", local, options.local_slots.size(), version2 ? "[slot][kind]" : "[slot]");
  const std::size_t all = options.rank == 0 ? local * options.tp_size : 0;
  expect_count("all_rank_host_ptrs", all, options.all_slots.size(),
               options.rank != 0 ? "none on other ranks than 0"
               : version2        ? "[slot][rank][kind]"
                                 : "[slot][rank]");
  expect_set("local_host_ptrs", options.local_slots);
  expect_set("all_rank_host_ptrs", options.all_slots);
  if (!options.destinations.empty()) {
    expect_count("destinations", options.device_layers * kinds, options.destinations.size(),
                 options.device_layers == 1 ? "one per kind" : "[device layer][kind]");
    expect_set("destinations", options.destinations);
    for (std::size_t i = 0; i < options.destinations.size(); ++i) {
      expect_extent(i % kinds, options.destinations[i], options.kind_bytes[i % kinds], options.experts);
    }
  }
  if (version2) return;
  if (options.piece_bytes == 0) refuse(Code::kArgument, "piece_bytes: expected > 0, got 0");
  if (options.slot_bytes < options.piece_bytes || options.slot_bytes < expert_bytes) {
    refuse(Code::kArgument, "slot_bytes: expected room for a piece of " + number(options.piece_bytes) +
                                " bytes and an expert of " + number(expert_bytes) + ", got " +
                                number(options.slot_bytes));
  }
}

}  // namespace layercast
