// Conversion only: addresses, GIL, errors. Policy lives in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "arena.h"
#include "convert.h"
#include "device.h"
#include "errors.h"
#include "fault.h"
#include "python_writer.h"
#include "transport.h"
#include "writers/writers.h"

namespace layercast::bindings {

namespace {

using namespace nb::literals;
// None: no limit.
std::uint64_t limit_ns(std::optional<std::uint64_t> ms) { return ms ? milliseconds(*ms) : kNever; }

bool signal_pending() {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

nb::dict to_dict(const Statistics& s) {
  const auto ms = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e6; };
  nb::dict out;
  out["epoch"] = s.epoch;
  out["layer_id"] = s.layer;
  out["expert_count"] = s.experts;
  out["rank"] = s.rank;
  out["writer_ms"] = ms(s.writer_ns);
  out["slot_wait_ms"] = ms(s.slot_wait_ns);
  out["h2d_ms"] = ms(s.h2d_ns);
  out["total_ms"] = ms(s.total_ns);
  out["bytes"] = s.bytes;
  out["pieces"] = s.pieces;
  out["resident_bytes"] = s.resident_bytes;
  out["direct"] = s.direct;
  out["pinned_bytes"] = s.pinned_bytes;
  out["unpinned_bytes"] = s.unpinned_bytes;
  return out;
}

// Raises the error with what the Python writer raised as its cause.
[[noreturn]] void raise_with_cause(const Error& error, const nb::object& cause) {
  nb::object exception = to_exception(error);
  if (error.code == Code::kInterrupted) {
    exception = cause;  // KeyboardInterrupt and its like pass unchanged
  } else {
    PyException_SetCause(exception.ptr(), cause.inc_ref().ptr());
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  nb::raise_python_error();
}

void run(Transport& transport, std::uint64_t epoch, std::int64_t layer, std::uint64_t experts,
         Writer& writer) {
  try {
    const nb::gil_scoped_release released;
    transport.run(epoch, layer, experts, writer);
  } catch (const Error& error) {
    if (auto* python = dynamic_cast<PythonWriter*>(&writer); python != nullptr && !error.from_group) {
      if (const nb::object cause = python->take_cause(); cause.is_valid()) raise_with_cause(error, cause);
    }
    throw;
  }
}

int traverse_writer(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<PythonWriter>(self)->traverse(visit, arg) : 0;
}

int clear_writer(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<PythonWriter>(self)->clear();
  return 0;
}

PyType_Slot writer_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_writer)},
                              {Py_tp_clear, reinterpret_cast<void*>(clear_writer)},
                              {0, nullptr}};

void bind_writers(nb::module_& m) {
  nb::class_<Writer>(m, "Writer", "Fills every rank's share of a piece.").def("paired", &Writer::paired);
  nb::class_<PythonWriter, Writer>(m, "PythonWriter", nb::type_slots(writer_slots))
      .def_static(
          "views", [](nb::object f) { return new PythonWriter(std::move(f), PythonWriter::Style::kViews); },
          "callable"_a, nb::rv_policy::take_ownership)
      .def_static(
          "addresses",
          [](nb::object f) { return new PythonWriter(std::move(f), PythonWriter::Style::kAddresses); },
          "callable"_a, nb::rv_policy::take_ownership);
  m.def(
      "memory_writer",
      [](std::uintptr_t address, std::size_t nbytes, std::size_t source_experts, const Sizes& kind_bytes,
         std::size_t ranks, nb::object) {
        return make_memory_writer(pointer(address), nbytes, source_experts, kind_bytes, ranks);
      },
      "address"_a, "nbytes"_a, "source_experts"_a, "kind_bytes"_a, "ranks"_a, "owner"_a.none(),
      nb::keep_alive<0, 6>());
  m.def(
      "function_writer",
      [](std::uintptr_t function, std::uintptr_t user, nb::object) {
        return make_function_writer(reinterpret_cast<WriterFunction>(function),
                                    reinterpret_cast<void*>(user));
      },
      "function"_a, "user"_a, "owner"_a.none(), nb::keep_alive<0, 3>());
  m.def("direct_writer", &make_direct_writer);
  m.def("pattern_writer", &make_pattern_writer, "seed"_a);
  using Table = nb::ndarray<const std::uint64_t, nb::c_contig, nb::device::cpu>;
  m.def(
      "block_writer",
      [](const Table& blocks, const Table& index, std::size_t experts, std::size_t ranks, std::size_t kinds,
         std::int64_t layer, nb::object) {
        const auto* rows = reinterpret_cast<const Block*>(blocks.data());
        return make_block_writer({rows, rows + blocks.size() * sizeof(std::uint64_t) / sizeof(Block)},
                                 {index.data(), index.data() + index.size()}, experts, ranks, kinds, layer);
      },
      "blocks"_a, "index"_a, "experts"_a, "ranks"_a, "kinds"_a, "layer"_a, "owner"_a.none(),
      nb::keep_alive<0, 7>());
  m.def(
      "fill_arena",
      [](Writer& writer, std::int64_t layer, std::size_t rank, std::size_t ranks, std::size_t first,
         std::size_t count, const Sizes& kind_bytes, const Addresses& kinds) {
        const auto there = pointers(kinds);
        const nb::gil_scoped_release released;
        fill_arena(writer, layer, rank, ranks, first, count, kind_bytes, there);
      },
      "writer"_a, "layer"_a, "rank"_a, "ranks"_a, "first"_a, "count"_a, "kind_bytes"_a, "kinds"_a);
  m.def(
      "fill_slots",
      [](Writer& writer, std::int64_t layer, std::size_t ranks, std::size_t experts, const Sizes& kind_bytes,
         std::size_t piece_bytes, std::uintptr_t slots, std::size_t count) {
        const nb::gil_scoped_release released;
        fill_slots(writer, layer, ranks, experts, kind_bytes, piece_bytes,
                   reinterpret_cast<std::byte*>(slots), count);
      },
      "writer"_a, "layer"_a, "ranks"_a, "experts"_a, "kind_bytes"_a, "piece_bytes"_a, "slots"_a, "count"_a);
  m.def(
      "count_wrong_pattern",
      [](std::uint64_t seed, std::int64_t layer, std::size_t rank, std::size_t experts,
         const Sizes& kind_bytes, const Addresses& destinations) {
        std::vector<const std::byte*> bases;
        for (const std::uintptr_t address : destinations) bases.push_back(pointer(address));
        const nb::gil_scoped_release released;
        std::int64_t first_bad = -1;
        const std::size_t wrong =
            count_wrong_pattern(seed, layer, rank, experts, kind_bytes, bases, first_bad);
        return std::pair(wrong, first_bad);
      },
      "seed"_a, "layer"_a, "rank"_a, "experts"_a, "kind_bytes"_a, "destinations"_a);
}

void bind_transport(nb::module_& m) {
  nb::class_<Transport>(m, "Transport")
      .def(
          "__init__",
          [](Transport* self, std::uintptr_t control, std::size_t control_bytes, std::size_t rank,
             std::size_t tp_size, const Sizes& kind_bytes, std::size_t experts, const Addresses& local_slots,
             const Addresses& all_slots, std::size_t slot_bytes, std::size_t piece_bytes,
             const Addresses& destinations, std::shared_ptr<Device> device,
             std::optional<std::uint64_t> timeout_ms, std::optional<std::uint64_t> join_timeout_ms,
             std::optional<std::uint64_t> writer_timeout_ms, std::size_t writer_threads,
             const std::vector<int>& cpus, std::size_t verify_every, std::size_t trace_events,
             std::size_t device_layers) {
            TransportOptions o;
            o.control = pointer(control);
            o.control_bytes = control_bytes;
            o.rank = rank;
            o.tp_size = tp_size;
            o.kind_bytes = kind_bytes;
            o.experts = experts;
            o.local_slots = pointers(local_slots);
            o.all_slots = pointers(all_slots);
            o.slot_bytes = slot_bytes;
            o.piece_bytes = piece_bytes;
            o.destinations = pointers(destinations);
            o.device = std::move(device);
            o.layer_limit_ns = limit_ns(timeout_ms);
            o.join_limit_ns = limit_ns(join_timeout_ms);
            o.writer_limit_ns = limit_ns(writer_timeout_ms);
            o.writer_threads = writer_threads;
            o.cpus = cpus;
            o.verify_every = verify_every;
            o.trace_events = trace_events;
            o.device_layers = device_layers;
            o.interrupted = signal_pending;
            rehearse_failure();
            new (self) Transport(std::move(o));
          },
          nb::kw_only(), "control"_a, "control_bytes"_a, "rank"_a, "tp_size"_a, "kind_bytes"_a, "experts"_a,
          "local_slots"_a, "all_slots"_a, "slot_bytes"_a, "piece_bytes"_a, "destinations"_a, "device"_a,
          "timeout_ms"_a.none(), "join_timeout_ms"_a.none(), "writer_timeout_ms"_a.none(),
          "writer_threads"_a = 1, "cpus"_a = std::vector<int>{}, "verify_every"_a = 0, "trace_events"_a = 0,
          "device_layers"_a = 1)
      .def(
          "join",
          [](Transport& t, std::uint64_t epoch, std::int64_t layer, std::size_t experts,
             std::optional<Sizes> ids, const std::vector<std::pair<std::size_t, Addresses>>& residents,
             const Sizes& owners, std::size_t device_layer) {
            Job job;
            job.epoch = epoch;
            job.layer = layer;
            job.streamed = experts;
            job.selected = ids.has_value();
            job.ids = ids.value_or(Sizes{});
            job.owners = owners;
            job.device_layer = device_layer;
            for (const auto& [expert, addresses] : residents) {
              const auto there = pointers(addresses);
              job.residents.push_back({expert, {there.begin(), there.end()}});
            }
            const nb::gil_scoped_release released;
            t.join(std::move(job));
          },
          "epoch"_a, "layer_id"_a, "expert_count"_a, "ids"_a = nb::none(),
          "residents"_a = std::vector<std::pair<std::size_t, Addresses>>{}, "owners"_a = Sizes{},
          "device_layer"_a = 0,
          "Experts: 0 .. expert_count - 1, or `ids`. Residents: (expert, addresses per kind or none).\n\n"
          "Owners: the rank that has expert x whole; `expert_count` are then positions, not experts.")
      .def("cancel", &Transport::cancel, "epoch"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "set_arena",
          [](Transport& t, std::int64_t layer, const Addresses& kinds) {
            const auto there = pointers(kinds);
            t.set_arena(layer, {there.begin(), there.end()});
          },
          "layer_id"_a, "kinds"_a)
      .def("trace",
           [](const Transport& t) {
             nb::list out;
             for (const TraceEvent& e : t.trace()) {
               out.append(nb::make_tuple(e.start_ns, e.end_ns, e.doing, e.epoch, e.piece, e.worker));
             }
             return out;
           })
      .def("run", &run, "epoch"_a, "layer_id"_a, "expert_count"_a, "writer"_a)
      .def(
          "wait",
          [](Transport& t, std::uint64_t epoch) {
            Statistics statistics;
            {
              const nb::gil_scoped_release released;
              statistics = t.wait(epoch);
            }
            return to_dict(statistics);
          },
          "epoch"_a)
      .def("stream_wait", &Transport::stream_wait, "epoch"_a, "stream"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("consumed", &Transport::consumed, "stream"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &Transport::close, nb::call_guard<nb::gil_scoped_release>())
      .def("overdue", &Transport::overdue, "epoch"_a, "waited_ms"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Fails the group where a rank has not come to `epoch`; without effect where all are there.")
      .def("statistics", [](const Transport& t) { return to_dict(t.statistics()); })
      .def(
          "report_death",
          [](const Transport& t, std::size_t rank, std::uint64_t pid, std::uint64_t started) {
            t.report_death(rank, pid, started, "its connection to the group was cut");
          },
          "rank"_a, "pid"_a, "started"_a)
      .def_prop_ro("seats",
                   [](const Transport& t) {
                     nb::list out;
                     for (const auto& [rank, pid, started] : t.seats()) {
                       out.append(nb::make_tuple(rank, pid, started));
                     }
                     return out;
                   })
      .def(
          "fail",
          [](Transport& t, const std::string& why, std::int64_t layer) {
            Error error(Code::kModel, why);
            error.layer = layer;
            const nb::gil_scoped_release released;
            t.fail(std::move(error));
          },
          "why"_a, "layer"_a, "Tells every rank that this one has failed outside of this library.")
      .def_prop_ro("failed", &Transport::failed)
      .def_prop_ro("closed", &Transport::closed)
      .def_prop_ro("last_epoch", &Transport::last_epoch)
      .def_prop_ro("destinations", [](const Transport& t) {
        Addresses out;
        for (std::byte* p : t.options().destinations) out.push_back(reinterpret_cast<std::uintptr_t>(p));
        return out;
      });
}

void bind_control(nb::module_& m) {
  m.def(
      "identity",
      [] {
        const Identity self = self_identity();
        return nb::make_tuple(self.pid, self.start_time, self.pid_namespace);
      },
      nb::sig("def identity() -> tuple[int, int, int]"),
      "This process: pid, start time in clock ticks, pid namespace (0: unknown).");
  m.def(
      "initialize_control",
      [](std::uintptr_t address, std::size_t nbytes, std::uint64_t tp_size, std::uint64_t version,
         std::size_t ranks, std::size_t slots) {
        ControlBlock::initialize(pointer(address), nbytes, tp_size, version, ranks, slots);
      },
      "address"_a, "nbytes"_a, "tp_size"_a, "version"_a, "ranks"_a, "slots"_a);
  m.def(
      "control_bytes",
      [](std::size_t ranks, std::size_t slots) { return layout_of(ranks, slots).region_bytes; }, "ranks"_a,
      "slots"_a);
  m.attr("VERSION_2_BYTES") = kVersion2RegionBytes;
  m.attr("VERSION_2_RANKS") = kVersion2Ranks;
  m.attr("VERSION_2_SLOTS") = kVersion2Slots;
  m.attr("MAX_RANKS") = kMaxRanks;
  m.attr("MAX_SLOTS") = kMaxSlots;
  m.attr("MAX_EPOCH") = Transport::kMaxEpoch;
}

#ifdef LAYERCAST_FAULTS
void bind_faults(nb::module_& m) {
  m.def(
      "arm_fault",
      [](std::string point, std::uint64_t nth, int fault, int fd, std::uintptr_t when) {
        arm_fault(std::move(point), nth, static_cast<Fault>(fault), fd,
                  reinterpret_cast<std::uint64_t*>(when));
      },
      "point"_a, "nth"_a, "fault"_a, "fd"_a, "when"_a);
  m.def("fault_points", [] {
    nb::list out;
    for (const std::string& point : fault_points()) out.append(point);
    return out;
  });
}
#else
void bind_faults(nb::module_&) {}
#endif

void bind_cut(nb::module_& m) {
  m.def(
      "cut",
      [](const Sizes& kind_bytes, std::size_t experts, std::size_t piece_bytes, bool whole_experts,
         std::uint64_t paired) {
        const Cut cut(kind_bytes, experts, piece_bytes, whole_experts, paired);
        std::vector<Run> runs;
        nb::list pieces;
        for (std::size_t p = 0; p < cut.pieces(); ++p) {
          cut.runs(p, runs);
          nb::list piece;
          for (const Run& r : runs) {
            piece.append(nb::make_tuple(r.expert, r.kind, r.offset, r.bytes, r.piece_offset));
          }
          pieces.append(piece);
        }
        return pieces;
      },
      "kind_bytes"_a, "experts"_a, "piece_bytes"_a, "whole_experts"_a, "paired"_a = 0,
      "The cut of a layer: per piece its runs (expert, kind, offset, bytes, offset in the piece).");
}

}  // namespace

}  // namespace layercast::bindings

NB_MODULE(_native, m) {
  using namespace layercast::bindings;
  m.doc() = "The native core of layercast. Not public: use layercast's Python names.";
  register_translator();
  bind_control(m);
  bind_devices(m);
  bind_writers(m);
  bind_transport(m);
  bind_cut(m);
  bind_faults(m);
}
