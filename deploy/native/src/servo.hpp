// Loop of the servo: robotrl.deploy.servo.loop, with the same states, records and commands.
//
// It computes no policy and allocates nothing in an episode. A control tick that needs a chunk writes a request and goes
// on; the answer is picked up when it is there. An inference that is slow, frozen or dead moves no deadline.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checks.hpp"
#include "clock.hpp"
#include "history.hpp"
#include "links.hpp"
#include "plan.hpp"
#include "risk.hpp"
#include "safety.hpp"
#include "settings.hpp"

namespace robotrl {

enum class RecordKind : int64_t { NONE = 0, TICK = 1, END = 2, FAULT = 3, STOPPED = 4, START = 5 };

// The run ends: with a fault, as ordered, or without a word.
struct RunEnded {
    RecordKind kind;
};

// A control tick whose command is not decided yet.
struct OpenTick {
    int64_t tick = -1, woke = 0, age_ns = 0, read_ns = 0, stamp_ns = 0;
    std::vector<float> observation;  // empty if it has another length than the robot's specs say
    std::vector<CameraFrame> frames;
    bool complete = false;
    int64_t asked = -1, committed = 0;
};

// The only reader of the robot's observations.
class Observer {
   public:
    static constexpr int NOTHING = -2, OBSERVATION = -1;

    Observer(const Settings& settings, const SharedMemory& robot, Clock& clock);
    // Reads the latest message; true if one of the episode has come so far.
    bool update(int64_t episode);
    // NOTHING, OBSERVATION or the index of a camera that an episode still lacks before its first tick.
    int missing(int64_t episode);
    void open_tick(OpenTick& into, int64_t tick, int64_t woke, int64_t episode);
    // The newest message, whatever its episode.
    bool newest(Message& into) { return observations_.read(into); }
    // The robot reported the end of the episode (link.EpisodeState), and its success.
    bool done() const { return known_ && last_.mode != 0; }
    bool solved() const { return known_ && last_.mode == 1; }
    const Message* last() const { return known_ ? &last_ : nullptr; }
    int64_t torn() const { return observations_.torn(); }

   private:
    const Settings& settings_;
    Clock& clock_;
    Channel observations_;
    std::vector<CameraSlots> cameras_;
    Message latest_, last_;
    bool known_ = false;
};

// The only writer of the robot's commands.
class Commander {
   public:
    Commander(const Settings& settings, const SharedMemory& robot, Observer& observer, Clock& clock);
    void begin(int64_t episode, int64_t state_id);
    // `before`: from which a robot that interpolates goes on.
    void send(int64_t mode, int64_t reason, const std::vector<float>& action, const std::vector<float>& before);
    void repeat(int64_t step);
    void hold();
    void damp();
    void settle();
    // Has the robot start the episode `begin` told.
    void reset();

   private:
    bool interpolates() const { return (settings_.linear || settings_.mean) && mode_ == ACTIVE; }
    void write(int64_t mode, int64_t part);

    const Settings& settings_;
    Clock& clock_;
    Observer& observer_;
    Channel commands_;
    int64_t episode_ = 0, state_id_ = -1, sent_ = 0, mode_ = HOLD, reason_ = NONE;
    std::vector<float> action_, before_;
    Message message_, echo_;
};

// A request under way.
struct ChunkRequest {
    bool present = false, abandoned = false;
    int64_t serial = 0, decision = -1, tick = 0, stamp_ns = 0, asked_ns = 0, lead = 0, delay = 0, executed = 0;
};

// Asks for chunks: at most one request is under way, and none is waited for.
class Asker {
   public:
    Asker(const Settings& settings, const SharedMemory& inference, Latency& latency, Clock& clock);
    // Writes a request for a tick's observation; `planned` are the `count` actions of the last chunk from the tick on.
    void ask(OpenTick& opened, const std::vector<float>& numbers, const float* planned, int64_t count, int64_t lead,
             int64_t episode, int64_t due_ns);
    // Takes the answer to the request under way; false if there is none yet.
    bool answered(Message& answer, ChunkRequest& request);
    int64_t take_round_trip();

    ChunkRequest request;
    // What the last failed inference said (JSON), or "" for none; `misfit` if the observation was not asked with.
    std::string refused;
    bool misfit = false;
    int64_t answer_ns = 0;
    TextSlot failure;

   private:
    const Settings& settings_;
    Clock& clock_;
    Latency& latency_;
    Channel requests_, answers_;
    int64_t serial_ = 0, decision_ = -1;
    Message message_;
};

class Servo {
   public:
    // `parent`: gives the id of the parent process; the run ends when that is not the supervisor any more.
    Servo(const Settings& settings, Clock& clock, int64_t (*parent)());
    // Tells that the servo is ready.
    void introduce(const std::string& scheduling);
    // Runs episodes until the supervisor orders the end, or is gone.
    void run();

   private:
    bool order(Message& into);
    void check_silence(int64_t silent_ns);
    void episode(const Message& order);
    void reset_robot();
    void check_start(const OpenTick& opened);
    // Moves the robot to its start pose by commands of the servo's own, where its driver does not.
    void move_to_start();
    void move(const OpenTick& opened);
    bool moves_to_start() const { return !settings_.start_pose.empty() && !settings_.dry_run; }
    int64_t observed(const OpenTick& opened);
    bool steps();
    int64_t deadline(int64_t step) const { return start_ + step * settings_.period_ns / settings_.steps; }
    bool ended(int64_t tick);
    void stop(int64_t tick);

    // Has the reflex judge the action on the newest observation; true if that sent another command.
    bool reflexed();
    void between(int64_t step);

    void control(int64_t tick, int64_t woke);
    bool words_misfit() const;
    const float* planned(int64_t tick);
    bool too_old(int64_t stamp_ns) { return clock_.now_ns() - stamp_ns > settings_.max_age_ns; }
    void finish(const OpenTick& opened, int64_t observed, const float* action);
    void write_record(const OpenTick& opened, const Verdict& verdict, const float* action, int64_t cursor,
                      int64_t waited_ns);
    void note_damped(int64_t hung_ns);

    void ask(OpenTick& opened, int64_t lead);
    void gather(const OpenTick& opened);
    void look();
    void take(const Message& answer, const ChunkRequest& request);
    void outdate();
    void wait(int64_t deadline);
    void note_lateness(int64_t late_ns);
    void miss(int64_t periods) { (starting_ ? start_misses_ : misses_) += periods; }
    // Entry of the summary: of the policy's ticks, or of those of the motion to a start pose.
    std::string counted(int64_t misses, const SafetyCounts& counts) const;
    void report(RecordKind kind, bool success);

    const Settings& settings_;
    Clock& clock_;
    int64_t (*parent_)();
    SharedMemory servo_memory_, robot_memory_, inference_memory_;
    Channel orders_;
    TextSlot introduction_, summary_;
    RecordRing records_;
    Observer observer_;
    Commander commander_;
    SafetyChain chain_;
    ObservationCheck check_;
    Latency latency_;
    Asker asker_;
    ChunkPlan plan_;
    ObservationHistory history_;
    std::optional<RiskGuard> guard_;
    std::vector<float> policy_action_;  // of this control period, where it is executed; else empty
    bool recovering_ = false;           // the last command was a recovery of the reflex
    int64_t recoveries_ = 0;            // servo ticks with a recovery since the last record
    bool between_sent_ = false;         // the reflex has sent a command since the last control tick
    std::vector<float> between_;        // the last one, of the record that is written
    Chunk next_, taken_;
    int64_t takeover_ = 0;
    int64_t misses_ = 0, start_misses_ = 0, orders_done_ = 0, serial_ = 0, state_id_ = -1, start_ = 0, tick_ = -1;
    bool in_episode_ = false, is_open_ = false;
    // the first whole and finite observation is within the start envelope, or that is not asked for
    bool start_known_ = false;
    // the robot is being moved to its start pose; the first element that has not arrived (-1: all have), where it is
    bool starting_ = false;
    int64_t away_ = -1;
    float away_at_ = 0.0f;
    std::vector<float> toward_;
    OpenTick open_, now_open_;
    std::vector<float> numbers_, record_;
    std::vector<float> lateness_us_;
    Message order_, answer_;
    std::string fault_ = "{}";
};

}  // namespace robotrl
