// C++ exceptions become those of tileoverlap/errors.py.

#include <nanobind/nanobind.h>

#include <exception>

#include "bindings.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap::python {
namespace {

void raise(const char* type, const std::exception& error) {
  // Looked up when needed: the extension can be imported by itself, as the stub generator does.
  const nb::object python_type = nb::module_::import_("tileoverlap.errors").attr(type);
  PyErr_SetString(python_type.ptr(), error.what());
}

void raise(const WaitTimeout& error) {
  const WaitRecord& record = error.record();
  nb::dict fields;
  fields["stage"] = nb::str(stage_of(record.what));
  fields["what"] = nb::cast(record.what).attr("name");
  fields["rank"] = nb::int_(record.rank);
  fields["peer"] = nb::int_(record.peer);
  fields["expert"] = nb::int_(record.expert);
  fields["band"] = nb::int_(record.band);
  fields["tile"] = nb::int_(record.tile);
  fields["segment"] = nb::int_(record.segment);
  fields["epoch"] = nb::int_(record.epoch);
  fields["seen"] = nb::int_(record.seen);
  fields["expected"] = nb::int_(record.expected);
  fields["timeout_s"] = nb::float_(static_cast<double>(record.timeout_ns) * 1e-9);
  fields["raised_on"] = nb::int_(error.raised_on());
  const nb::object type = nb::module_::import_("tileoverlap.errors").attr("WaitTimeout");
  const nb::object exception = type(error.what(), **fields);
  PyErr_SetObject(type.ptr(), exception.ptr());
}

// Most derived first.
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const WaitTimeout& error) {
    raise(error);
  } catch (const DTypeError& error) {
    raise("DTypeError", error);
  } catch (const CapacityError& error) {
    raise("CapacityError", error);
  } catch (const InvalidArgument& error) {
    raise("InvalidArgument", error);
  } catch (const CallRefused& error) {
    raise("CallRefused", error);
  } catch (const InternalError& error) {
    raise("InternalError", error);
  } catch (const Error& error) {
    raise("Error", error);
  }
}

}  // namespace

void bind_errors(nb::module_& module) {
  nb::enum_<WaitFor>(module, "WaitFor")
      .value("counts", WaitFor::kCounts)
      .value("memory", WaitFor::kMemory)
      .value("dispatch_credit", WaitFor::kDispatchCredit)
      .value("dispatch_arrival", WaitFor::kDispatchArrival)
      .value("band", WaitFor::kBand)
      .value("credit", WaitFor::kCredit)
      .value("arrival", WaitFor::kArrival)
      .value("peer_closed", WaitFor::kPeerClosed)
      .value("same_plan", WaitFor::kSamePlan)
      .value("same_terms", WaitFor::kSameTerms)
      .value("error", WaitFor::kError)
      .value("connection", WaitFor::kConnection)
      .value("host_message", WaitFor::kHostMessage);
  nb::register_exception_translator(translate);
}

}  // namespace tileoverlap::python
